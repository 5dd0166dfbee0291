"""Weights of sub-metatrees by what sampling reads of them.

Weights by stored sizes treat a relation of which batches read little like one that they read often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.links import select_ends
from hopper.graph.schema import Relation
from hopper.hetero.metatree import Metatree
from hopper.hetero.unroll import unroll
from hopper.micrograph.route import permute
from hopper.micrograph.sample import NeighborSampler, StoredNames

BATCHES: Final = 8
BATCH_SIZE: Final = 1024


def weigh_by_sampling(
    graph: GraphDirectory, tree: Metatree, fanouts: Sequence[int], seed: int = 0
) -> Mapping[Relation, int]:
    """Count the nodes and edges that batches of training roots read below each root relation.

    A node counts once for each batch, sub-metatree and depth, and an edge once for each hop.
    :data:`BATCHES` batches of :data:`BATCH_SIZE` roots of each type are sampled, or fewer if the
    graph has fewer roots. Where edges are predicted, roots are the ends of training edges. Sampling
    takes four bytes of memory for each node, sub-metatree and depth.

    Parameters
    ----------
    fanouts: in-neighbours per relation, first hop first; -1 = all.
    seed: the seed of the order of roots and of the draws.

    Raises
    ------
    RequestError: there is not one fanout for each hop, or the graph has no training root.
    """
    if len(fanouts) != tree.layers:
        raise RequestError(
            f"weights: expected {tree.layers} fanouts, one per hop, given {len(fanouts)}"
        )
    roots_by_type = _roots_by_type(graph)
    if not any(roots.size for roots in roots_by_type.values()):
        raise RequestError(f"weights: {graph.path} has no training root to sample for")
    names = unroll(tree, by_depth=True, by="root")
    kinds = graph.schema.node_types
    original_ids = {stored: np.arange(kinds[stored].count) for stored in names.types.values()}
    sampler = NeighborSampler(
        {relation: graph.topology(stored) for relation, stored in names.relations.items()},
        {name: original_ids[stored] for name, stored in names.types.items()},
        tree.target,
        fanouts,
        seed,
        names=StoredNames(names.relations),
    )
    orders = {name: _first_in_order(seed, roots) for name, roots in roots_by_type.items()}
    weights = dict.fromkeys(tree.roots, 0)
    longest = max(order.size for order in orders.values())
    for number, first in enumerate(range(0, longest, BATCH_SIZE)):
        batch = {name: order[first : first + BATCH_SIZE] for name, order in orders.items()}
        subgraph = sampler.sample(batch, 0, number)
        for root, relations in names.below.items():
            sources = {relation.src for relation in relations}
            weights[root] += sum(int(subgraph.nodes[name].size) for name in sources)
            weights[root] += sum(
                int(hop[relation].indices.size) for hop in subgraph.hops for relation in relations
            )
    return weights


def _first_in_order(seed: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    positions = np.arange(min(BATCHES * BATCH_SIZE, ids.size))
    return ids[permute(seed, 0, ids.size, positions)]


def _roots_by_type(graph: GraphDirectory) -> dict[str, NDArray[np.int64]]:
    """Return the training roots by type: [n] int64, ascending."""
    schema = graph.schema
    if "train" not in schema.splits:
        return {}
    if not schema.target_relations:
        return {schema.target_type(): np.asarray(graph.split("train"))}
    links = graph.links("train")
    ends = {name: select_ends(links, schema.target_relations, name) for name in schema.root_types}
    return {name: np.unique(ids) for name, ids in ends.items()}
