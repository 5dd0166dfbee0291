"""Sampling where relations are divided over servers (Heta, section 4).

Each server draws the relations that it stores. For roots it draws only their root relations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import StoredNames, Subgraph
from hopper.partition import PartitionedGraph
from hopper.partition.description import ServerPartition

_AS_ROOTS: Final = " as roots"
"""A suffix that no node type has, since names have no spaces."""


def root_name(node_type: str) -> str:
    """Return the name under which the roots of a type are sampled, as a type of their own: a server
    draws only its root relations for roots, but all relations that it follows there for other nodes
    of the type, which hops reach deeper in a sub-metatree."""
    return node_type + _AS_ROOTS


def root_relation(relation: Relation) -> Relation:
    """Return a root relation with :func:`root_name` its destination type, as blocks name it."""
    return Relation(relation.src, relation.rel, root_name(relation.dst))


def make_rooted_sampler(
    make_sampler: Callable[..., NeighborSampler],
    graph: PartitionedGraph,
    server: int,
    partition: ServerPartition,
    names: StoredNames,
    sizes: Sequence[int],
    seed: int,
    *,
    dropout_seed: int | None = None,
    root_hops: Mapping[str, int] | None = None,
    whole_lists: bool = False,
) -> NeighborSampler:
    """Make a sampler of what one server stores, its ``partition``, with roots as types of their
    own.

    ``make_sampler`` is the sampler's class, and takes ``sizes``, ``seed`` and ``dropout_seed``. The
    partition has the model's names, which ``names`` translate to stored ones. Roots of a type are
    drawn for at the first ``root_hops`` hops; None = at all. ``whole_lists`` says whether draws
    depend on all edges of a neighbour list, also on those that other servers store.
    """
    relations = {relation: names.relation(relation) for relation in partition.relations}
    relations |= {root_relation(root): names.relation(root) for root in partition.roots}
    types = {name: names.node_type(name) for name in partition.node_types}
    # Several names may share a stored relation, whose topology is opened once.
    below = cache(graph.topology)
    into_roots = cache(graph.root_lists if whole_lists else graph.root_topology)
    topologies = {
        relation: (into_roots if _is_root(relation.dst) else below)(stored, server)
        for relation, stored in relations.items()
    }
    roots = {root_name(name): name for name in graph.schema.root_types}
    # Negatives of links may be of types of which the server stores nothing.
    types |= {name: name for name in roots.values()} | roots
    originals = {name: graph.original_ids(types[name]) for name in sorted(types)}
    hops = (
        {root_relation(root): root_hops[root.dst] for root in partition.roots} if root_hops else {}
    )
    return make_sampler(
        topologies,
        originals,
        next(iter(roots)),
        sizes,
        seed,
        names=StoredNames(relations, types),
        hops=hops,
        dropout_seed=dropout_seed,
    )


def _is_root(name: str) -> bool:
    return name.endswith(_AS_ROOTS)


def nodes_below(subgraph: Subgraph) -> dict[str, NDArray[np.int64]]:
    """Return the nodes below the roots, by type; types without such nodes are missing."""
    return {name: ids for name, ids in subgraph.nodes.items() if not _is_root(name) and ids.size}


def find_read_nodes(
    subgraph: Subgraph, roots: Mapping[str, NDArray[np.int64]]
) -> dict[str, list[NDArray[np.int64]]]:
    """Return the nodes whose input rows a pass reads, by type, in groups: those below the roots,
    and the given roots; and by relation the edges whose features it reads."""
    reads = {name: [ids] for name, ids in nodes_below(subgraph).items()}
    for name, ids in roots.items():
        reads.setdefault(name, []).append(ids)
    return reads | subgraph.edge_tables()
