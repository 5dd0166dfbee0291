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

    def pick(self, is_chosen: NDArray[np.bool_]) -> Edges:
        """Return the edges that are ``is_chosen`` ([n] bool)."""
        return Edges(*(array[is_chosen] for array in self))


class TargetEdges:
    """The edges of target relations that are also part of the topology.

    If topology is divided, each rank reads the edges into nodes that it owns and sends them to the
    ranks that need them. So every rank must call each method.

    Parameters
    ----------
    placement: tells the rank that owns a node.
    """

    def __init__(self, graph: PartitionedGraph, cluster: Cluster, placement: Placement) -> None:
        self._graph, self._cluster, self._placement = graph, cluster, placement

    def all_of(self, relation: Relation) -> Edges:
        """Return all edges of a relation in ascending order of ids.

        Raises
        ------
        ClusterError: a rank was lost, or a deadline passed.
        """
        edges = self._stored(relation)
        if not self._graph.layout.draws_alone:
            world = self._cluster.world
            edges = self._exchange([[array] * world for array in self._into_mine(edges, relation)])
        order = np.argsort(edges.ids)
        return Edges(*(array[order] for array in edges))

    def find_known(self, relation: Relation, side: Side, is_asked: NDArray[np.bool_]) -> Edges:
        """Return the edges between this rank's nodes and some others, and maybe further edges.

        Parameters
        ----------
        side: the end of an edge at which this rank's nodes are.
        is_asked: [nodes] bool, the nodes at the other end, the same on every rank.

        Raises
        ------
        As :meth:`all_of`.
        """
        edges = self._stored(relation)
        if self._graph.layout.draws_alone or side == "tail":
            # In-edges are stored with their destinations.
            return edges
        edges = self._into_mine(edges, relation)
        edges = edges.pick(is_asked[edges.dst])
        ranks = self._placement.rank_of(relation.src, edges.src)
        parts = [edges.pick(ranks == rank) for rank in range(self._cluster.world)]
        return self._exchange([list(arrays) for arrays in zip(*parts, strict=True)])

    def _stored(self, relation: Relation) -> Edges:
        """Return all edges of a relation that this rank can read."""
        graph = self._graph
        server = None if graph.layout.draws_alone else self._cluster.server
        topology = graph.topology(relation, server)
        ids, src = np.asarray(topology.edge_ids), np.asarray(topology.indices)
        return Edges(ids, src, topology.list_destinations())

    def _into_mine(self, edges: Edges, relation: Relation) -> Edges:
        """Return the edges into nodes that this rank owns."""
        count = self._graph.schema.node_types[relation.dst].count
        is_mine = np.zeros(count, np.bool_)
        is_mine[self._placement.owned(relation.dst, self._cluster.rank)] = True
        return edges.pick(is_mine[edges.dst])

    def _exchange(self, groups: list[list[Ids]]) -> Edges:
        """Send edges to all ranks, and return those that all ranks have sent to this one.

        Parameters
        ----------
        groups: for each of the three arrays, the part for every rank.
        """
        received = exchange_arrays(
            self._cluster, groups, "topology", "telling edges that are known"
        )
        return Edges(*(np.concatenate(parts) for parts in received))
