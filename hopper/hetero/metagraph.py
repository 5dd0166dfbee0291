"""The metagraph: a graph's node types and relations, with their sizes (Heta, section 2.1)."""

from __future__ import annotations

from typing import TypeAlias, cast

import networkx as nx

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation, find_relations

Metagraph: TypeAlias = nx.MultiDiGraph
"""Vertices are node types; links are keyed by their Relation. Both have a ``count``."""


def make_metagraph(schema: GraphSchema) -> Metagraph:
    """Make the metagraph of a graph. Empty types and relations are vertices and links, too."""
    metagraph = nx.MultiDiGraph()
    for name, kind in schema.node_types.items():
        metagraph.add_node(name, count=kind.count)
    for relation in schema.ordered_relations():
        metagraph.add_edge(
            relation.src, relation.dst, key=relation, count=schema.relations[relation].count
        )
    return metagraph


def relations_into(metagraph: Metagraph, node_type: str) -> list[Relation]:
    """Return the relations whose edges end in a type, in canonical order."""
    return sorted(key for _, _, key in metagraph.in_edges(node_type, keys=True))


def find_relation(metagraph: Metagraph, text: str) -> Relation:
    """Find a relation by its triple ``src/name/dst``, or by its name if only one relation has it.

    Raises
    ------
    RequestError: no relation or several relations have the name; the message lists all relations.
    """
    relations = sorted(key for _, _, key in metagraph.edges(keys=True))
    matches = find_relations(text, relations)
    if len(matches) != 1:
        reason = f"{', '.join(map(str, matches))} have that name" if matches else "there is none"
        raise RequestError(
            f"relation {text!r}: expected one of {', '.join(map(str, relations))}, by its triple "
            f"or by a name that only one has; {reason}"
        )
    return matches[0]


def node_count(metagraph: Metagraph, node_type: str) -> int:
    """Return the number of nodes of a type."""
    return cast(int, metagraph.nodes[node_type]["count"])


def edge_count(metagraph: Metagraph, relation: Relation) -> int:
    """Return the number of edges of a relation."""
    return cast(int, metagraph.edges[relation.src, relation.dst, relation]["count"])
