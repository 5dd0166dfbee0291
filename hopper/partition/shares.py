"""How evenly nodes, edges and roots fell on servers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.training import SplitGraph, count_roots

Counts = NDArray[np.int64]
_NODES_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True)
class Shares:
    """What each owner (a server, or a rank) has; every array is [owners] int64.

    Attributes
    ----------
    nodes: by node type.
    edges: in-edges of the owner's nodes, of all relations.
    splits: by split, roots at the owner's nodes of the target type.
    """

    nodes: dict[str, Counts]
    edges: Counts
    splits: dict[str, Counts]

    def as_json(self) -> dict[str, Any]:
        """The shares, and of each the largest over the mean."""
        return {
            "nodes": {name: each.tolist() for name, each in self.nodes.items()},
            "edges": self.edges.tolist(),
            "splits": {name: each.tolist() for name, each in self.splits.items()},
            "largest_over_mean": {
                "nodes": {name: imbalance(each) for name, each in self.nodes.items()},
                "edges": imbalance(self.edges),
                "splits": {name: imbalance(each) for name, each in self.splits.items()},
            },
        }


def shares_of(
    graph: SplitGraph, divided: PartitionedGraph, ranks_per_server: int
) -> dict[str, Any]:
    """The "shares" entry of partition.json: of servers and, where nodes were divided over several
    ranks of a server, of ranks; parameters as of :func:`count_shares`."""
    levels = {"servers": 1} | ({"ranks": ranks_per_server} if ranks_per_server > 1 else {})
    return {name: count_shares(graph, divided, each).as_json() for name, each in levels.items()}


def count_shares(graph: SplitGraph, divided: PartitionedGraph, ranks_per_server: int) -> Shares:
    """Count what each rank has; with one rank a server, what each server has.

    Parameters
    ----------
    graph: whose splits are counted.
    divided: the same graph, its topology whole.
    """
    placement = divided.placement(ranks_per_server)
    owners = placement.world
    nodes = {name: np.zeros(owners, np.int64) for name in divided.schema.node_types}
    edges = np.zeros(owners, np.int64)
    target = divided.schema.target_type()
    indptrs = [(each.dst, divided.topology(each).indptr) for each in divided.relations]
    for name in nodes:
        for ids in _chunks(divided.book.total(name)):
            here = placement.rank_of(name, ids)
            nodes[name] += np.bincount(here, minlength=owners)
            for into, indptr in indptrs:
                if into == name:
                    degrees = np.diff(indptr[ids[0] : ids[-1] + 2])
                    edges += _sums(here, degrees, owners)
    global_ids = divided.global_ids(target)

    def owner_of(ids: Counts) -> Counts:
        return placement.rank_of(target, np.asarray(global_ids[ids]))

    splits = {split: count_roots(graph, split, owners, owner_of) for split in divided.schema.splits}
    return Shares(nodes, edges, splits)


def imbalance(shares: Counts) -> float:
    """Maximum over mean; 1 where there is nothing to balance."""
    return round(float(shares.max() / shares.mean()), 6) if shares.any() else 1.0


def _sums(owners: Counts, weights: Counts, count: int) -> Counts:
    """[count] int64: sums of weights by owner."""
    # Weights make bincount return floats; sums below 2**53 are exact in them.
    return np.bincount(owners, weights=weights, minlength=count).astype(np.int64)


def _chunks(count: int) -> Iterator[Counts]:
    """[n] int64 each: ids from 0 to ``count``."""
    for first in range(0, count, _NODES_AT_ONCE):
        yield np.arange(first, min(count, first + _NODES_AT_ONCE))
