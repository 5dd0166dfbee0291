"""The in-edges of one relation, in compressed sparse column form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Topology:
    """CSC of one relation: ``indices[indptr[v]:indptr[v + 1]]`` are the in-neighbours of v.

    In-neighbours stand in ascending order of *original* id (equal ids, parallel edges, in order of
    edge id), whichever ids the arrays hold. In a graph directory the ids are original ids; in a
    partitioned directory they are global ids. All arrays may be read-only memory maps.
    """

    indptr: NDArray[np.int64]
    """[destinations + 1] int64"""
    indices: NDArray[np.int64]
    """[edges] int64, source ids"""
    edge_ids: NDArray[np.int64]
    """[edges] int64, the edge's position in the list that the graph was made from"""
    in_degrees: NDArray[np.int64]
    """[destinations] int64, full-graph in-degree under this relation"""
    out_degrees: NDArray[np.int64]
    """[sources] int64, full-graph out-degree under this relation"""
    positions: NDArray[np.int64] | None = None
    """[edges] int64, ascending by destination: where each edge stands among all in-edges of its
    destination, of which these are some; None: these are all"""
    weight_sums: NDArray[np.int64] | None = None
    """[edges] int64: within each neighbour list, the sum of the edges' weights up to and with each,
    in units of 2^-32 of the relation's largest weight; None: edges have no weights, or, in a graph
    directory, they stand by edge id"""
    alias_table: NDArray[np.uint32] | None = None
    """[edges] uint32, beside ``weight_sums``: the columns by which edges are drawn in proportion to
    their weights (docs/draws.md)"""
    times: NDArray[np.int64] | None = None
    """[edges] int64: from when on edges may be seen, ascending within each neighbour list, ties by
    position; None: always"""
    by_time: NDArray[np.int64] | None = None
    """[edges] int64: the position in its neighbour list of the edge that each of these is of"""
    has_gaps: bool = False
    """whether some of these are stored elsewhere: their sources and ids are -1"""
    starts: NDArray[np.int64] | None = None
    """[destinations + 1] int64, indptr of all servers together, where these are the edges of one;
    None: they are all, or edges have no features"""

    def has_lists(self, destinations: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] bool: of which destinations all in-edges are here, where those of some are not.

        Parameters
        ----------
        destinations: [n] int64 ids.
        """
        lengths = self.indptr[destinations + 1] - self.indptr[destinations]
        return lengths == self.in_degrees[destinations]

    def edge_places(
        self,
        destinations: NDArray[np.int64],
        indptr: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """[edges] int64: the places of edges in the CSC of all servers, by which their features are
        found.

        Parameters
        ----------
        destinations: [n] int64 ids. indptr: [n + 1] int64, which of the edges are whose.
        positions: [edges] int64, in the destinations' neighbour lists.
        """
        starts = self.indptr if self.starts is None else self.starts
        firsts = starts[destinations]
        return np.repeat(firsts, np.diff(indptr)) + positions

    def has_edges(
        self,
        destinations: NDArray[np.int64],
        indptr: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """[edges] bool: which edges are here, where there are gaps; parameters as of
        :meth:`edge_places`."""
        return self.indices[self.edge_places(destinations, indptr, positions)] >= 0
