"""Sampling where relations are divided over servers: each draws what it stores, for the roots their
root relations alone (Heta, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler, StoredNames
from hopper.micrograph.subgraph import Subgraph
from hopper.partition import PartitionedGraph
from hopper.partition.layouts import Holding

_AS_ROOTS: Final = " as roots"
"""no type's name has a space in it"""


def roots_of(node_type: str) -> str:
    """The roots of a type as a type of their own: unlike other nodes of it, which may be met deeper
    in a sub-metatree, a server draws for them its root relations alone."""
    return node_type + _AS_ROOTS


def of_roots(relation: Relation) -> Relation:
    """A root relation under the name that it has in blocks, where it ends in the roots."""
    return Relation(relation.src, relation.rel, roots_of(relation.dst))


def make_rooted_sampler(
    kind: Callable[..., NeighborSampler],
    graph: PartitionedGraph,
    server: int,
    held: Holding,
    names: StoredNames,
    sizes: Sequence[int],
    seed: int,
    *,
    dropout_seed: int | None = None,
    root_hops: Mapping[str, int] | None = None,
    whole_lists: bool = False,
) -> NeighborSampler:
    """A sampler over what one server stores, which draws for :func:`roots_of` a type its root
    relations.

    Parameters
    ----------
    kind: of sampler. sizes, seed, dropout_seed: as it takes them.
    held: what the server stores of what is read, under the names of this.
    names: what these stand for.
    root_hops: by type, at how many hops, the first ones, roots are drawn for; None = at all.
    whole_lists: whether draws depend on all edges of a list, also on those stored elsewhere.
    """
    relations = {each: names.relation(each) for each in held.relations}
    relations |= {of_roots(each): names.relation(each) for each in held.roots}
    types = {each: names.node_type(each) for each in held.node_types}
    # Each once, whatever the number of its names.
    below = {own: graph.topology(own, server) for own in _of(relations, is_root=False)}
    of_root = graph.root_lists if whole_lists else graph.root_topology
    first = {own: of_root(own, server) for own in _of(relations, is_root=True)}
    topologies = {
        each: first[own] if _is_root(each.dst) else below[own] for each, own in relations.items()
    }
    roots = {roots_of(each): each for each in graph.schema.root_types}
    # What links compare nodes with may be of types that the server stores nothing of.
    types |= {each: each for each in roots.values()} | roots
    originals = {each: graph.original_ids(types[each]) for each in sorted(types)}
    hops = {of_roots(each): root_hops[each.dst] for each in held.roots} if root_hops else {}
    return kind(
        topologies,
        originals,
        next(iter(roots)),
        sizes,
        seed,
        names=StoredNames(relations, types),
        hops=hops,
        dropout_seed=dropout_seed,
    )


def _of(relations: Mapping[Relation, Relation], *, is_root: bool) -> set[Relation]:
    """What is stored of relations into the roots, or of the others."""
    return {own for each, own in relations.items() if _is_root(each.dst) == is_root}


def _is_root(name: str) -> bool:
    return name.endswith(_AS_ROOTS)


def nodes_below(subgraph: Subgraph) -> dict[str, NDArray[np.int64]]:
    """By type, the nodes below the roots; types without any are missing."""
    return {each: ids for each, ids in subgraph.nodes.items() if not _is_root(each) and ids.size}


def nodes_read(
    subgraph: Subgraph, roots: Mapping[str, NDArray[np.int64]]
) -> dict[str, list[NDArray[np.int64]]]:
    """By type, in groups, the nodes whose input rows a pass reads: those below the roots, and
    roots; and by relation the edges whose features it reads."""
    read = {each: [ids] for each, ids in nodes_below(subgraph).items()}
    for each, ids in roots.items():
        read.setdefault(each, []).append(ids)
    return read | subgraph.edge_tables()
