"""The in-edges of one relation, in compressed sparse column form."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import read_only
from cache_server.neighbor_lists import NeighborLists, StoredIds


@dataclass(frozen=True)
class Topology:
    """CSC of one relation: ``indices[indptr[v]:indptr[v + 1]]`` are the in-neighbours of v.

    A graph directory has original ids, a partitioned directory global ids. In either, in-neighbours
    are in ascending order of *original* id, and parallel edges in order of edge id. All arrays may
    be read-only memory maps.

    ``indices``, ``edge_ids`` and ``positions`` are int32 or int64, as they are stored: kernels are
    compiled for what they get, and whoever computes with ids (as ``source * count + destination``)
    widens the piece at hand, never a whole array.
    """

    indptr: NDArray[np.int64]
    """[lists + 1] int64; there is a list for each destination, unless ``stored`` tells of which"""
    indices: NDArray[Any]
    """[edges] int32 or int64, source ids"""
    edge_ids: NDArray[Any]
    """[edges] int32 or int64, the edge's position in the list that the graph was made from"""
    in_degrees: NDArray[np.int64]
    """[destinations] int64, full-graph in-degree under this relation. Where topology is divided,
    degrees are a :class:`~cache_server.store.sharded_array.ShardedArray`, which is indexed alike"""
    out_degrees: NDArray[np.int64]
    """[sources] int64, full-graph out-degree under this relation"""
    positions: NDArray[Any] | None = None
    """[edges] int32 or int64, ascending by destination: the position of each edge among all
    in-edges of its destination, where only some of them are here; None: all are here"""
    cumulative_weights: NDArray[np.int32] | None = None
    """[edges] int32: running sums of the weights within each neighbor list, in units of which a
    list has 2^31 at most; None: edges have no weights, or this is a graph directory, which has
    weights by edge id"""
    times: NDArray[np.int64] | None = None
    """[edges] int64: the times from which edges may be seen, ascending within each neighbour list,
    ties by position; None: always"""
    by_time: NDArray[np.int64] | None = None
    """[edges] int64: the position in its neighbour list of the edge that each time belongs to"""
    has_gaps: bool = False
    """whether some edges are stored on other servers; their ``indices`` and ``edge_ids`` are -1"""
    starts: NDArray[np.int64] | None = None
    """[destinations + 1] int64, indptr of the edges of all servers, where only one server's are
    here; None: all are here, or edges have no features"""
    stored: StoredIds | None = None
    """the destinations whose lists are here; None: all"""

    def read_only(self) -> Topology:
        """Return the same topology with read-only views of its arrays."""
        views: dict[str, Any] = {
            field.name: read_only(array)
            for field in fields(self)
            if isinstance(array := getattr(self, field.name), np.ndarray)
        }
        return replace(self, **views)

    def rows(self, destinations: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return [n] int64: the places in ``indptr`` of destinations whose lists are here."""
        return destinations if self.stored is None else self.stored.rows(destinations)

    def list_destinations(self) -> NDArray[np.int64]:
        """Return [edges] int64: the destination of each edge."""
        ids = np.arange(self.indptr.size - 1) if self.stored is None else self.stored.all_ids()
        return np.repeat(ids, np.diff(self.indptr))

    def lists(self, src_ids: NDArray[np.int64], dst_ids: NDArray[np.int64]) -> NeighborLists:
        """Return the lists to draw from, given [sources] and [destinations] int64 original ids."""
        by_edge = self.cumulative_weights, self.times, self.by_time, self.stored
        return NeighborLists(self.indptr, self.indices, src_ids, dst_ids, *by_edge)

    def edge_indices(
        self,
        destinations: NDArray[np.int64],
        indptr: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return [edges] int64: indices of edges in the CSC of all servers, as features have.

        ``positions`` in the neighbour lists of [n] ``destinations`` lie within bounds ``indptr``.
        """
        if self.starts is None:
            firsts = self.indptr[self.rows(destinations)]
        else:
            firsts = self.starts[destinations]
        return np.repeat(firsts, np.diff(indptr)) + positions

    def has_edges(
        self,
        destinations: NDArray[np.int64],
        indptr: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Return [edges] bool: whether each edge of :meth:`edge_indices` is here."""
        return self.indices[self.edge_indices(destinations, indptr, positions)] >= 0
