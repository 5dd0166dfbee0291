"""The metagraph: a graph's node types and relations, each with how many there are (Heta, 2.1)."""

from __future__ import annotations

from typing import TypeAlias, cast

import networkx as nx

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation, find_relations

Metagraph: TypeAlias = nx.MultiDiGraph
"""vertices: node types with ``count``; links: keyed by their Relation, with ``count`` edges"""


def make_metagraph(schema: GraphSchema) -> Metagraph:
    """The metagraph of a graph; empty types and relations are vertices and links like any other."""
    found = nx.MultiDiGraph()
    for name, kind in schema.node_types.items():
        found.add_node(name, count=kind.count)
    for relation in schema.ordered_relations():
        found.add_edge(
            relation.src, relation.dst, key=relation, count=schema.relations[relation].count
        )
    return found


def relations_into(metagraph: Metagraph, node_type: str) -> list[Relation]:
    """The relations whose edges end in a type, in canonical order."""
    return sorted(key for _, _, key in metagraph.in_edges(node_type, keys=True))


def find_relation(metagraph: Metagraph, text: str) -> Relation:
    """The relation that a word means: ``src/name/dst``, or its name where only one has it.

    Raises
    ------
    RequestError: none or several have the name; all are listed.
    """
    relations = sorted(key for _, _, key in metagraph.edges(keys=True))
    found = find_relations(text, relations)
    if len(found) != 1:
        several = f"{', '.join(map(str, found))} have that name" if found else "there is none"
        raise RequestError(
            f"relation {text!r}: expected one of {', '.join(map(str, relations))}, by its triple "
            f"or by a name that only one has; {several}"
        )
    return found[0]


def node_count(metagraph: Metagraph, node_type: str) -> int:
    """Nodes of a type."""
    return cast(int, metagraph.nodes[node_type]["count"])


def edge_count(metagraph: Metagraph, relation: Relation) -> int:
    """Edges of a relation."""
    return cast(int, metagraph.edges[relation.src, relation.dst, relation]["count"])
