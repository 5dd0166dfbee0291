"""The in-edges of one relation, in compressed sparse column form, and how they are built; and the
edges of a split, named by their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.neighbor_lists import NeighborLists, StoredIds
from cache_server.kernel import kernel, read_only
from cache_server.store.npy import ID_DTYPES
from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces, release_pages
from hopper.graph.check_values import find_outside
from hopper.graph.layout import topology_arrays

Ids = NDArray[np.int64]
EdgeEnds = NDArray[np.integer[Any]]
"""[edges] int32 or int64, the sources or destinations of edge 0, 1, ..."""
SortEdges = Callable[[EdgeEnds, EdgeEnds, str], Iterator[tuple[NDArray[Any], NDArray[Any], Ids]]]
"""Called with sources, destinations and a name for errors. Yields sources, destinations and edge
ids, a piece at a time, sorted by (destination, source, edge id)."""


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

    indptr: Ids
    """[lists + 1] int64; there is a list for each destination, unless ``stored`` tells of which"""
    indices: NDArray[Any]
    """[edges] int32 or int64, source ids"""
    edge_ids: NDArray[Any]
    """[edges] int32 or int64, the edge's position in the list that the graph was made from"""
    in_degrees: Ids
    """[destinations] int64, full-graph in-degree under this relation. Where topology is divided,
    degrees are a :class:`~cache_server.sharded_array.ShardedArray`, which is indexed alike"""
    out_degrees: Ids
    """[sources] int64, full-graph out-degree under this relation"""
    positions: NDArray[Any] | None = None
    """[edges] int32 or int64, ascending by destination: the position of each edge among all
    in-edges of its destination, where only some of them are here; None: all are here"""
    cumulative_weights: NDArray[np.int32] | None = None
    """[edges] int32: running sums of the weights within each neighbor list, in units of which a
    list has 2^31 at most; None: edges have no weights, or this is a graph directory, which has
    weights by edge id"""
    times: Ids | None = None
    """[edges] int64: the times from which edges may be seen, ascending within each neighbour list,
    ties by position; None: always"""
    by_time: Ids | None = None
    """[edges] int64: the position in its neighbour list of the edge that each time belongs to"""
    has_gaps: bool = False
    """whether some edges are stored on other servers; their ``indices`` and ``edge_ids`` are -1"""
    starts: Ids | None = None
    """[destinations + 1] int64, indptr of the edges of all servers, where only one server's are
    here; None: all are here, or edges have no features"""
    stored: StoredIds | None = None
    """the destinations whose lists are here; None: all"""

    def read_only(self) -> Topology:
        """Return the same topology with read-only views of its arrays."""
        arrays = {name: of for name, of in vars(self).items() if isinstance(of, np.ndarray)}
        views: dict[str, Any] = {name: read_only(array) for name, array in arrays.items()}
        return replace(self, **views)

    def rows(self, destinations: Ids) -> Ids:
        """Return [n] int64: the places in ``indptr`` of destinations whose lists are here."""
        return destinations if self.stored is None else self.stored.rows(destinations)

    def list_destinations(self) -> Ids:
        """Return [edges] int64: the destination of each edge."""
        ids = np.arange(self.indptr.size - 1) if self.stored is None else self.stored.all_ids()
        return np.repeat(ids, np.diff(self.indptr))

    @property
    def drawn_bytes(self) -> int:
        """The bytes of the arrays that draws read."""
        arrays = (self.indptr, self.indices, self.cumulative_weights, self.times, self.by_time)
        return sum(array.nbytes for array in arrays if array is not None)

    def lists(self, src_ids: Ids, dst_ids: Ids, together: int = 0) -> NeighborLists:
        """Return the lists to draw from, of relations of which :attr:`drawn_bytes` are ``together``
        so many, given [sources] and [destinations] int64 original ids."""
        by_edge = self.cumulative_weights, self.times, self.by_time, self.stored
        return NeighborLists(self.indptr, self.indices, src_ids, dst_ids, *by_edge, together)

    def edge_indices(self, destinations: Ids, indptr: Ids, positions: Ids) -> Ids:
        """Return [edges] int64: indices of edges in the CSC of all servers, as features have.

        ``positions`` in the neighbour lists of [n] ``destinations`` lie within bounds ``indptr``.
        """
        if self.starts is None:
            firsts = self.indptr[self.rows(destinations)]
        else:
            firsts = self.starts[destinations]
        return np.repeat(firsts, np.diff(indptr)) + positions


@dataclass(frozen=True)
class Links:
    """Edges of target relations, named by original ids."""

    ids: Ids
    """[n] int64, ascending, as in splits; they count the edges of earlier target relations too"""
    relations: Ids
    """[n] int64, index of each edge's relation among the target relations"""
    src: Ids
    dst: Ids
    """[n] int64, original ids of both ends"""
    labels: NDArray[Any] | None = None
    """[n] or [n, classes], as stored; None unless labels of edges are predicted"""
    times: Ids | None = None
    """[n] int64; None unless the edges of all target relations have times"""

    @property
    def count(self) -> int:
        """Number of edges."""
        return int(self.ids.size)


def build_topology(
    src: EdgeEnds, dst: EdgeEnds, num_src: int, num_dst: int, *, where: str = "edges"
) -> Topology:
    """Build the CSC of an edge list, in-neighbours ascending by (source id, edge id).

    Time is linear. Memory is the output and one working array as large as its ``edge_ids``. Numbers
    of nodes are those of the source and of the destination type; a GraphError that begins with
    ``where`` tells that shapes or dtypes are wrong, or that an id is out of range.
    """
    arrays = topology_arrays(src.size, num_src, num_dst).items()
    empty: dict[str, Any] = {name: np.empty(length, dtype) for name, (dtype, length) in arrays}
    topology = Topology(**empty)
    fill_topology(src, dst, topology, None, where)
    return topology


def fill_topology(
    src: EdgeEnds, dst: EdgeEnds, out: Topology, sort: SortEdges | None, where: str
) -> None:
    """Do what :func:`build_topology` does, but write into the arrays of ``out``, which may be maps.

    With ``sort``, memory is a piece of sorted edges, and a number a source node.
    """
    for end, ids, degrees in (("src", src, out.out_degrees), ("dst", dst, out.in_degrees)):
        if ids.ndim != 1 or ids.dtype not in ID_DTYPES:
            raise GraphError(
                f"{where}: {end}: expected a one-dimensional int32 or int64 array, "
                f"given {ids.dtype} of shape {list(ids.shape)}"
            )
        if ids.size != src.size:
            raise GraphError(
                f"{where}: expected as many sources as destinations, given {src.size} and "
                f"{dst.size}"
            )
        edge = find_outside(ids, 0, degrees.size)
        if edge >= 0:
            raise GraphError(
                f"{where}: {end} of edge {edge}: expected an id in [0, {degrees.size}), given "
                f"{int(ids[edge])}"
            )
        for _, zeros in iter_pieces(degrees):
            zeros[:] = 0
    out.indptr[0] = 0
    if sort is None:
        _sort_in_memory(src, dst, out)
    else:
        _write_sorted(sort(src, dst, where), out)


def _sort_in_memory(src: NDArray[Any], dst: NDArray[Any], out: Topology) -> None:
    """Sort the edges by two stable counting sorts."""
    order = np.arange(src.size, dtype=out.edge_ids.dtype)
    for keys, degrees in ((src, out.out_degrees), (dst, out.in_degrees)):
        _add_degrees(keys, degrees)
        out.edge_ids[:] = order
        _sort_by(keys, degrees, out.edge_ids, order)
    np.cumsum(out.in_degrees, out=out.indptr[1:])
    out.edge_ids[:] = order
    for first, edges in iter_pieces(order):
        out.indices[first : first + edges.size] = src[edges]


def _write_sorted(pieces: Iterator[tuple[NDArray[Any], ...]], out: Topology) -> None:
    first = 0
    for sources, targets, edge_ids in pieces:
        last = first + len(sources)
        out.indices[first:last] = sources
        out.edge_ids[first:last] = edge_ids
        _add_degrees(sources, out.out_degrees)
        _add_degrees(targets, out.in_degrees)
        # Destinations ascend, so their degrees are not touched again.
        release_pages(out.indices, out.edge_ids, out.in_degrees)
        first = last
    release_pages(out.out_degrees)
    for row, degrees in iter_pieces(out.in_degrees):
        out.indptr[row + 1 : row + 1 + len(degrees)] = out.indptr[row] + np.cumsum(degrees)
        release_pages(out.indptr)


@kernel
def _add_degrees(ids: NDArray[Any], degrees: NDArray[Any]) -> None:
    for index in range(ids.size):
        degrees[ids[index]] += 1


@kernel
def _sort_by(
    keys: NDArray[Any], degrees: NDArray[Any], order: NDArray[Any], out: NDArray[Any]
) -> None:
    """Write the edges to ``out`` by key, those of equal keys as in ``order``."""
    ends = np.cumsum(degrees) - degrees
    for edge in order:
        out[ends[keys[edge]]] = edge
        ends[keys[edge]] += 1
