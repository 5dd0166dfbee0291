"""Count the nodes, edges and roots of each server and rank."""

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
    """The shares of all owners (servers or ranks); every array is [owners] int64.

    Attributes
    ----------
    nodes: number of nodes by node type.
    edges: number of in-edges of the owner's nodes, of all relations.
    splits: number of roots by split.
    """

    nodes: dict[str, Counts]
    edges: Counts
    splits: dict[str, Counts]

    def as_json(self) -> dict[str, Any]:
        """Convert the shares to JSON, with the largest over the mean of each."""
        return {
            "nodes": {name: counts.tolist() for name, counts in self.nodes.items()},
            "edges": self.edges.tolist(),
            "splits": {name: counts.tolist() for name, counts in self.splits.items()},
            "largest_over_mean": {
                "nodes": {name: imbalance(counts) for name, counts in self.nodes.items()},
                "edges": imbalance(self.edges),
                "splits": {name: imbalance(counts) for name, counts in self.splits.items()},
            },
        }


def make_shares(
    graph: SplitGraph, divided: PartitionedGraph, ranks_per_server: int
) -> dict[str, Any]:
    """Make the "shares" entry of partition.json, for servers and for ranks of a second level.

    The parameters are those of :func:`count_shares`.
    """
    levels = {"servers": 1} | ({"ranks": ranks_per_server} if ranks_per_server > 1 else {})
    return {name: count_shares(graph, divided, ranks).as_json() for name, ranks in levels.items()}


def count_shares(graph: SplitGraph, divided: PartitionedGraph, ranks_per_server: int) -> Shares:
    """Count the nodes, edges and roots of each rank; with one rank a server, of each server.

    Parameters
    ----------
    graph: the graph whose splits are counted.
    divided: the same graph, divided, with whole topology.
    """
    placement = divided.placement(ranks_per_server)
    owners = placement.world
    nodes = {name: np.zeros(owners, np.int64) for name in divided.schema.node_types}
    edges = np.zeros(owners, np.int64)
    target = divided.schema.target_type()
    indptrs = [(relation.dst, divided.topology(relation).indptr) for relation in divided.relations]
    for name in nodes:
        for ids in _chunks(divided.book.total(name)):
            ranks = placement.rank_of(name, ids)
            nodes[name] += np.bincount(ranks, minlength=owners)
            for dst_type, indptr in indptrs:
                if dst_type == name:
                    degrees = np.diff(indptr[ids[0] : ids[-1] + 2])
                    edges += _sums(ranks, degrees, owners)
    global_ids = divided.global_ids(target)

    def owner_of(ids: Counts) -> Counts:
        return placement.rank_of(target, np.asarray(global_ids[ids]))

    splits = {split: count_roots(graph, split, owners, owner_of) for split in divided.schema.splits}
    return Shares(nodes, edges, splits)


def imbalance(shares: Counts) -> float:
    """Return the maximum over mean; 1 if all shares are 0."""
    return round(float(shares.max() / shares.mean()), 6) if shares.any() else 1.0


def _sums(owners: Counts, weights: Counts, count: int) -> Counts:
    """Return [count] int64: sums of weights by owner."""
    # With weights, bincount returns floats, in which sums below 2**53 are exact.
    return np.bincount(owners, weights=weights, minlength=count).astype(np.int64)


def _chunks(count: int) -> Iterator[Counts]:
    """Iterate over ids [0, ``count``) in pieces, [n] int64 each."""
    for first in range(0, count, _NODES_AT_ONCE):
        yield np.arange(first, min(count, first + _NODES_AT_ONCE))
