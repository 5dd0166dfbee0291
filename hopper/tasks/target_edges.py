"""The edges of target relations, wherever they are stored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.array_exchange import exchange_arrays
from hopper.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph
from hopper.partition.placement import Placement
from hopper.tasks.sides import Side

Ids = NDArray[np.int64]


class Edges(NamedTuple):
    """[n] int64 each: ids of edges, and global ids of both ends."""

    ids: Ids
    src: Ids
    dst: Ids

    def pick(self, chosen: NDArray[np.bool_]) -> Edges:
        """Some of them."""
        return Edges(*(each[chosen] for each in self))


class TargetEdges:
    """The edges of target relations that messages travel along.

    Where topology is divided, a rank reads those into nodes that it owns, and ranks tell each other
    what they want of them. So every rank has to call each method.

    Parameters
    ----------
    placement: who owns nodes.
    """

    def __init__(self, graph: PartitionedGraph, cluster: Cluster, placement: Placement) -> None:
        self._graph, self._cluster, self._placement = graph, cluster, placement

    def all_of(self, relation: Relation) -> Edges:
        """All edges of a relation, ascending by id.

        Raises
        ------
        ClusterError: a rank was lost, or a deadline passed.
        """
        found = self._stored(relation)
        if not self._graph.layout.draws_alone:
            world = self._cluster.world
            found = self._exchange([[each] * world for each in self._own(found, relation)])
        order = np.argsort(found.ids)
        return Edges(*(each[order] for each in found))

    def known_of(self, relation: Relation, side: Side, is_asked: NDArray[np.bool_]) -> Edges:
        """Edges whose other end is asked for, and maybe others; errors as of :meth:`all_of`.

        Parameters
        ----------
        side: edges are enough whose end of this side the rank owns.
        is_asked: [nodes] bool, of the other ends, the same on every rank.
        """
        found = self._stored(relation)
        if self._graph.layout.draws_alone or side == "tail":
            # In-edges lie with their destinations.
            return found
        found = self._own(found, relation)
        found = found.pick(is_asked[found.dst])
        ranks = self._placement.rank_of(relation.src, found.src)
        parts = [found.pick(ranks == rank) for rank in range(self._cluster.world)]
        return self._exchange([list(each) for each in zip(*parts, strict=True)])

    def _stored(self, relation: Relation) -> Edges:
        """All that this rank can read."""
        graph = self._graph
        server = None if graph.layout.draws_alone else self._cluster.server
        topology = graph.topology(relation, server)
        dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
        return Edges(np.asarray(topology.edge_ids), np.asarray(topology.indices), dst)

    def _own(self, edges: Edges, relation: Relation) -> Edges:
        """Those into nodes that this rank owns."""
        count = self._graph.schema.node_types[relation.dst].count
        is_own = np.zeros(count, np.bool_)
        is_own[self._placement.owned(relation.dst, self._cluster.rank)] = True
        return edges.pick(is_own[edges.dst])

    def _exchange(self, groups: list[list[Ids]]) -> Edges:
        """What all ranks send; ``groups`` are, of each array, what each rank receives."""
        told = exchange_arrays(self._cluster, groups, "topology", "telling edges that are known")
        return Edges(*(np.concatenate(each) for each in told))
