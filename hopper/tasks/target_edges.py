"""The edges of target relations, gathered from the servers that store them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.cluster.array_exchange import exchange_arrays
from hopper.cluster.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph
from hopper.partition.placement import Placement
from hopper.tasks.target import Side

Ids = NDArray[np.int64]


class Edges(NamedTuple):
    """Edges of one relation: their ids and the global ids of both ends, [n] int64 each."""

    ids: Ids
    src: Ids
    dst: Ids

    def pick(self, chosen: NDArray[np.bool_] | Ids) -> Edges:
        """Return some edges, by a mask [n] bool or by their places [m] int64."""
        return Edges(*(array[chosen] for array in self))


class TargetEdges:
    """The edges of target relations that are also part of the topology.

    If topology is divided, each rank reads the edges into nodes that it owns by a placement, and
    sends them to the ranks that need them. So every rank must call each method, of which a
    :class:`ClusterError` says that a rank was lost or a deadline passed.
    """

    def __init__(self, graph: PartitionedGraph, cluster: Cluster, placement: Placement) -> None:
        self._graph, self._cluster, self._placement = graph, cluster, placement
        self._has_all = graph.layout.draws_alone
        """whether this rank can read all edges"""

    def all_of(self, relation: Relation) -> Edges:
        """Return all edges of a relation in ascending order of ids."""
        edges = self._stored(relation)
        if not self._has_all:
            world = self._cluster.world
            edges = self._exchange([[array] * world for array in self._into_mine(edges, relation)])
        return edges.pick(np.argsort(edges.ids))

    def find_known(self, relation: Relation, side: Side, is_asked: NDArray[np.bool_]) -> Edges:
        """Return the edges between this rank's nodes at ``side`` and those nodes at the other end
        that are asked for ([nodes] bool, the same on every rank), and maybe further edges."""
        edges = self._stored(relation)
        if self._has_all or side == "tail":
            # In-edges are stored with their destinations.
            return edges
        edges = self._into_mine(edges, relation)
        edges = edges.pick(is_asked[edges.dst])
        ranks = self._placement.rank_of(relation.src, edges.src)
        parts = [edges.pick(ranks == rank) for rank in range(self._cluster.world)]
        return self._exchange([list(arrays) for arrays in zip(*parts, strict=True)])

    def _stored(self, relation: Relation) -> Edges:
        """Return all edges of a relation that this rank can read."""
        topology = self._graph.topology(relation, None if self._has_all else self._cluster.server)
        ids, src = np.asarray(topology.edge_ids), np.asarray(topology.indices)
        return Edges(ids, src, topology.list_destinations())

    def _into_mine(self, edges: Edges, relation: Relation) -> Edges:
        """Return the edges into nodes that this rank owns."""
        return edges.pick(self._placement.rank_of(relation.dst, edges.dst) == self._cluster.rank)

    def _exchange(self, groups: list[list[Ids]]) -> Edges:
        """Send every rank its part of each of the three arrays, and return what is received."""
        operation = "telling edges that are known"
        received = exchange_arrays(self._cluster, groups, "topology", operation)
        return Edges(*(np.concatenate(parts) for parts in received))
