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

ROOTS: Final = "the roots"
"""the roots as a node type of their own: unlike other nodes of the target type, which may be met
deeper in a sub-metatree, a server draws for them its root relations alone"""


def of_roots(relation: Relation) -> Relation:
    """A root relation under the name that it has in blocks, where it ends in the roots."""
    return Relation(relation.src, relation.rel, ROOTS)


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
    root_hops: int | None = None,
    whole_lists: bool = False,
) -> NeighborSampler:
    """A sampler over what one server stores, which draws for :data:`ROOTS` its root relations.

    Parameters
    ----------
    kind: of sampler. sizes, seed, dropout_seed: as it takes them.
    held: what the server stores of what is read, under the names of this.
    names: what these stand for.
    root_hops: at how many hops, the first ones, roots are drawn for; None = at all.
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
        each: first[own] if each.dst == ROOTS else below[own] for each, own in relations.items()
    }
    originals = {each: graph.original_ids(types[each]) for each in sorted(types)}
    target = graph.schema.target_type()
    originals[ROOTS] = graph.original_ids(target)
    hops = {} if root_hops is None else dict.fromkeys(map(of_roots, held.roots), root_hops)
    return kind(
        topologies,
        originals,
        ROOTS,
        sizes,
        seed,
        names=StoredNames(relations, types | {ROOTS: target}),
        hops=hops,
        dropout_seed=dropout_seed,
    )


def _of(relations: Mapping[Relation, Relation], *, is_root: bool) -> set[Relation]:
    """What is stored of relations into the roots, or of the others."""
    return {own for each, own in relations.items() if (each.dst == ROOTS) == is_root}


def nodes_below(subgraph: Subgraph) -> dict[str, NDArray[np.int64]]:
    """By type, the nodes below the roots; types without any are missing."""
    return {each: ids for each, ids in subgraph.nodes.items() if each != ROOTS and ids.size}


def nodes_read(
    subgraph: Subgraph, target: str, roots: NDArray[np.int64]
) -> dict[str, list[NDArray[np.int64]]]:
    """By type, in groups, the nodes whose input rows a pass reads: those below the roots, and
    roots; and by relation the edges whose features it reads."""
    read = {each: [ids] for each, ids in nodes_below(subgraph).items()}
    read.setdefault(target, []).append(roots)
    return read | subgraph.edge_tables()
