"""Build a CSC from an edge list by two stable counting sorts, in linear time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces, release_pages
from hopper.graph.check_values import find_outside
from hopper.graph.layout import ID_DTYPES, topology_arrays
from hopper.graph.topology import Topology

SortEdges = Callable[
    [NDArray[np.integer[Any]], NDArray[np.integer[Any]], str],
    Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]],
]
"""Called with sources, destinations and a name for errors. Yields sources, destinations and edge
ids, a piece at a time, sorted by (destination, source, edge id)."""


def build_topology(
    src: NDArray[np.integer[Any]],
    dst: NDArray[np.integer[Any]],
    num_src: int,
    num_dst: int,
    *,
    where: str = "edges",
) -> Topology:
    """Build the CSC of an edge list, in-neighbours ascending by (source id, edge id).

    Time is linear. Memory is the output and one working array as large as its ``edge_ids``.

    Parameters
    ----------
    src, dst: [edges] int32 or int64, the ends of edge 0, 1, ...
    num_src, num_dst: number of nodes of the source and destination type.
    where: what the edges are, for errors.

    Raises
    ------
    GraphError: shapes or dtypes are wrong, or an id is out of range.
    """
    arrays = topology_arrays(src.size, num_src, num_dst).items()
    empty: dict[str, Any] = {name: np.empty(length, dtype) for name, (dtype, length) in arrays}
    topology = Topology(**empty)
    fill_topology(src, dst, topology, where=where)
    return topology


def fill_topology(
    src: NDArray[np.integer[Any]],
    dst: NDArray[np.integer[Any]],
    out: Topology,
    sort: SortEdges | None = None,
    *,
    where: str = "edges",
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
    if sort is None:
        _sort_in_memory(src, dst, out)
    else:
        _write_sorted(sort(src, dst, where), out)


def _sort_in_memory(src: NDArray[Any], dst: NDArray[Any], out: Topology) -> None:
    _add_degrees(src, out.out_degrees)
    _add_degrees(dst, out.in_degrees)
    order = np.empty(src.size, out.edge_ids.dtype)
    _order_by_source(src, out.out_degrees, order)
    out.indptr[0] = 0
    np.cumsum(out.in_degrees, out=out.indptr[1:])
    _place_by_destination(dst, order, out.out_degrees, out.indptr, out.indices, out.edge_ids)


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
    out.indptr[0] = 0
    for row, degrees in iter_pieces(out.in_degrees):
        out.indptr[row + 1 : row + 1 + len(degrees)] = out.indptr[row] + np.cumsum(degrees)
        release_pages(out.indptr)


@kernel
def _add_degrees(ids: NDArray[Any], degrees: NDArray[Any]) -> None:
    for index in range(ids.size):
        degrees[ids[index]] += 1


@kernel
def _order_by_source(src: NDArray[Any], out_degrees: NDArray[Any], order: NDArray[Any]) -> None:
    """Write the edge ids to ``order``, sorted by (source id, edge id)."""
    ends = np.empty(out_degrees.size, np.int64)
    total = np.int64(0)
    for source in range(out_degrees.size):
        ends[source] = total
        total += out_degrees[source]
    for edge in range(src.size):
        order[ends[src[edge]]] = edge
        ends[src[edge]] += 1


@kernel
def _place_by_destination(
    dst: NDArray[Any],
    order: NDArray[Any],
    out_degrees: NDArray[Any],
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    edge_ids: NDArray[Any],
) -> None:
    """Write the edges to their destinations' lists, in the order of (source id, edge id)."""
    ends = indptr[:-1].copy()
    rank = np.int64(0)
    for source in range(out_degrees.size):
        for _ in range(out_degrees[source]):
            edge = order[rank]
            rank += 1
            slot = ends[dst[edge]]
            ends[dst[edge]] = slot + 1
            indices[slot] = source
            edge_ids[slot] = edge
