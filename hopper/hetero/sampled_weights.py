"""Weights of sub-metatrees by what sampling meets of them, instead of by what is stored.

Counts weigh a relation of which a batch reads little as much as one that it reads often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import permute
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.links import select_ends
from hopper.graph.schema import Relation
from hopper.hetero.metatree import Metatree
from hopper.hetero.unroll import unroll
from hopper.micrograph.sample import NeighborSampler, StoredNames

BATCHES: Final = 8
BATCH_SIZE: Final = 1024


def sampled_weights(
    graph: GraphDirectory, tree: Metatree, fanouts: Sequence[int], seed: int = 0
) -> Mapping[Relation, int]:
    """By root relation, the nodes and edges that batches of training roots meet below it.

    Nodes count once a batch, sub-metatree and depth, edges once a hop; both are of :data:`BATCHES`
    batches of :data:`BATCH_SIZE` roots of each type together, or of as many as there are. Where
    edges are predicted, roots are the ends of training edges.

    Parameters
    ----------
    fanouts: per relation, first hop first; -1 = all. Memory holds four bytes a node, sub-metatree
        and depth.
    seed: of the order of roots and of the draws.

    Raises
    ------
    RequestError: not one fanout per hop; the graph has no training root.
    """
    if len(fanouts) != tree.layers:
        raise RequestError(
            f"weights: expected {tree.layers} fanouts, one per hop, given {len(fanouts)}"
        )
    ids = _roots_by_type(graph)
    if not any(own.size for own in ids.values()):
        raise RequestError(f"weights: {graph.path} has no training root to sample for")
    names = unroll(tree, by_depth=True, by="root")
    ids_of = {each: np.arange(graph.schema.node_types[each].count) for each in names.types.values()}
    sampler = NeighborSampler(
        {each: graph.topology(stored) for each, stored in names.relations.items()},
        {each: ids_of[stored] for each, stored in names.types.items()},
        tree.target,
        fanouts,
        seed,
        names=StoredNames(names.relations),
    )
    orders = {each: _first_in_order(seed, own) for each, own in ids.items()}
    weights = dict.fromkeys(tree.roots, 0)
    longest = max(order.size for order in orders.values())
    for number, first in enumerate(range(0, longest, BATCH_SIZE)):
        roots = {each: order[first : first + BATCH_SIZE] for each, order in orders.items()}
        subgraph = sampler.sample(roots, 0, number)
        for root, relations in names.below.items():
            met = {relation.src for relation in relations}
            weights[root] += sum(int(subgraph.nodes[each].size) for each in met)
            weights[root] += sum(
                int(hop[relation].indices.size) for hop in subgraph.hops for relation in relations
            )
    return weights


def _first_in_order(seed: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.arange(min(BATCHES * BATCH_SIZE, ids.size))
    return ids[permute(seed, 0, ids.size, places)]


def _roots_by_type(graph: GraphDirectory) -> dict[str, NDArray[np.int64]]:
    """By type, [n] int64, ascending: the roots that are trained."""
    schema = graph.schema
    if "train" not in schema.splits:
        return {}
    if not schema.target_relations:
        return {schema.target_type(): np.asarray(graph.split("train"))}
    links = graph.links("train")
    ends = {each: select_ends(links, schema.target_relations, each) for each in schema.root_types}
    return {each: np.unique(own) for each, own in ends.items()}
