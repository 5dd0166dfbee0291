"""Write topology in global ids, streamed, so that memory holds a few pieces of an array, and beside
it what draws by weight and in time read.

A server's edges are written by themselves, from the graph and files that all parts share, so
servers' parts can be built anywhere and in any order. Source and edge ids are as wide as in the
graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel, read_only
from hopper.graph import layout
from hopper.graph.array_file import create_array, iter_pieces, open_range_writer, release_pages
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import edges_at_once, row_ranges
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.partition.write import BuildContext
from hopper.timing.phases import Progress

BY_EDGE: Final[tuple[layout.StoredArray, ...]] = ("indices", "edge_ids")
_BY_TIME: Final[tuple[layout.StoredArray, ...]] = ("times", "by_time")
EdgesOf = Callable[[int, int], tuple[Ids, Ids]]
"""Called with a range of rows; returns original source ids and edge ids of the edges into them."""


def lay_out_topology(context: BuildContext, relation: Relation) -> None:
    """Write where every list of a relation stands in global ids, and degrees; the edges are zeros
    until :func:`fill_topology` writes them."""
    old = context.graph.topology(relation)
    src, dst = (context.map(end, "original_ids") for end in (relation.src, relation.dst))

    def create(name: layout.StoredArray, like: NDArray[Any]) -> NDArray[Any]:
        file = layout.topology_file(context.work, relation, name)
        return create_array(file, like.dtype, like.shape)

    for out, degrees, nodes in (
        (create("in_degrees", old.in_degrees), old.in_degrees, dst),
        (create("out_degrees", old.out_degrees), old.out_degrees, src),
    ):
        for first, ids in iter_pieces(nodes):
            out[first : first + ids.size] = degrees[ids]
        release_pages(out, degrees)
    indptr, last = create("indptr", old.indptr), 0
    for first, ids in iter_pieces(dst):
        bounds = indptr[first + 1 : first + 1 + ids.size]
        np.cumsum(old.indptr[ids + 1] - old.indptr[ids], out=bounds)
        bounds += last
        last = int(bounds[-1])
    release_pages(indptr, old.indptr)
    create("indices", old.indices)
    create("edge_ids", old.edge_ids)


def fill_topology(
    context: BuildContext, progress: Progress, server: int
) -> dict[Relation, tuple[int, int]]:
    """Write a server's edges of every relation in global ids, with neighbours in the order of
    original ids; return by relation the number of edges into the server's nodes, and of cut edges
    among them. Progress advances by edges."""
    counts = {}
    for relation in context.graph.schema.relations:
        indptr = context.whole(relation, "indptr")
        own = context.own(relation.dst, server)
        cut = _fill_lists(context, relation, server, indptr, progress)
        counts[relation] = int(indptr[own.stop] - indptr[own.start]), cut
    return counts


def _fill_lists(
    context: BuildContext, relation: Relation, server: int, indptr: Ids, progress: Progress
) -> int:
    """Write a server's edges of a relation; return the number of cut edges."""
    old, cut, at_once = context.graph.topology(relation), 0, edges_at_once()
    src, dst = context.map(relation.src, "global_ids"), context.map(relation.dst, "original_ids")
    own, nodes = context.own(relation.src, server), context.own(relation.dst, server)
    files = [layout.topology_file(context.work, relation, name) for name in BY_EDGE]
    with open_range_writer(files[0]) as indices_at, open_range_writer(files[1]) as edge_ids_at:
        for first, last in row_ranges(indptr, nodes.start, nodes.stop):
            start, stop = int(indptr[first]), int(indptr[last])
            shifts = old.indptr[dst[first:last]] - indptr[first:last]
            # A single list may have more edges than are written at a time.
            if last - first > 1:
                shifts = np.repeat(shifts, np.diff(indptr[first : last + 1]))
            for edge in range(start, stop, at_once):
                edges = np.arange(edge, min(stop, edge + at_once)) + shifts
                indices = src.take(old.indices.take(edges)).astype(old.indices.dtype)
                indices_at(edge, indices)
                edge_ids_at(edge, old.edge_ids.take(edges))
                cut += int(np.count_nonzero((indices < own.start) | (indices >= own.stop)))
                progress.advance(edges.size)
            release_pages(old.indptr, old.indices, old.edge_ids, indptr)
    return cut


def fill_draw_arrays(context: BuildContext, progress: Progress, relation: Relation) -> None:
    """Write the arrays that draws read of a relation after its edges have been written; progress
    advances by edges."""
    indptr = context.whole(relation, "indptr")
    indices, edge_ids = (context.whole(relation, name) for name in BY_EDGE)
    original_ids = context.map(relation.src, "original_ids")

    def edges_of(first: int, last: int) -> tuple[Ids, Ids]:
        piece = slice(int(indptr[first]), int(indptr[last]))
        progress.advance(piece.stop - piece.start)
        return original_ids[indices[piece]], edge_ids[piece]

    write_sampling_index(context.graph, context.work, relation, indptr, edges_of)


def write_sampling_index(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the arrays that draws read of neighbor lists within [destinations + 1] bounds to the
    folder of the directory, or of a server: running sums of weights (docs/inside/draws.md), and the
    times from which edges may be seen (docs/howto/times.md)."""
    if graph.schema.relations[relation].weighted:
        _write_weights(graph, folder, relation, indptr, edges_of)
    if graph.schema.is_timed(relation):
        _write_times(graph, folder, relation, indptr, edges_of)


def write_sampling_index_into(
    graph: GraphDirectory,
    folder: Path,
    relation: Relation,
    destinations: NDArray[np.bool_] | None,
    progress: Progress,
) -> None:
    """Write the arrays of a relation whose nodes keep their order, of the lists of some
    destinations ([destinations] bool; None = all); progress advances by bytes."""
    edge_bytes = layout.draw_bytes(graph.schema, relation)
    if not edge_bytes:
        return
    topology = graph.topology(relation)
    counts = np.diff(topology.indptr)
    if destinations is not None:
        counts[~destinations] = 0
    indptr = np.concatenate(([0], np.cumsum(counts)))

    def edges_of(first: int, last: int) -> tuple[Ids, Ids]:
        shifts = np.repeat(topology.indptr[first:last] - indptr[first:last], counts[first:last])
        edges = np.arange(indptr[first], indptr[last]) + shifts
        sources, edge_ids = topology.indices[edges], topology.edge_ids[edges]
        release_pages(topology.indptr, topology.indices, topology.edge_ids)
        return sources, edge_ids

    write_sampling_index(graph, folder, relation, indptr, edges_of)
    progress.advance(int(indptr[-1]) * edge_bytes)


def _write_weights(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the running sums of weights."""
    file = layout.topology_file(folder, relation, "cumulative_weights")
    sums = create_array(file, np.int32, (int(indptr[-1]),))
    weights = graph.edge_weights(relation)
    largest = float(weights.max(initial=0.0))
    for first, last in row_ranges(indptr, 0, indptr.size - 1):
        list_weights = weights[edges_of(first, last)[1]]
        bounds = indptr[first : last + 1]
        sums[bounds[0] : bounds[-1]] = add_up_weights(list_weights, largest, bounds - bounds[0])
        release_pages(sums, weights)


def add_up_weights(weights: NDArray[np.float32], largest: float, bounds: Ids) -> NDArray[np.int32]:
    """Return [edges] int32: running sums of weights, in whole units, within neighbor lists with
    [lists + 1] bounds; ``largest`` is the relation's largest weight."""
    degrees = np.diff(bounds)
    fine = np.maximum(1, np.floor(weights.astype(np.float64) / largest * 2.0**32)).astype(np.uint64)
    totals = np.concatenate((np.zeros(1, np.uint64), np.cumsum(fine)))[bounds]
    of_list = np.repeat(np.diff(totals), degrees)
    units = fine * np.repeat((2**31 - 1 - degrees).astype(np.uint64), degrees) // of_list
    # Sums may wrap over many lists, but differences of them are exact.
    sums = np.cumsum(np.maximum(units, 1).astype(np.int64))
    before = np.concatenate((np.zeros(1, np.int64), sums))[bounds[:-1]]
    return (sums - np.repeat(before, degrees)).astype(np.int32)


def _write_times(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the times within neighbor lists, earliest first, and the edges that they are of."""
    schema = graph.schema
    files = (layout.topology_file(folder, relation, name) for name in _BY_TIME)
    times, by_time = (create_array(file, np.int64, (int(indptr[-1]),)) for file in files)
    of_edges = graph.times(relation) if schema.relations[relation].timed else None
    is_timed = schema.node_types[relation.src].timed
    of_sources = graph.times(relation.src) if is_timed else None
    for first, last in row_ranges(indptr, 0, indptr.size - 1):
        sources, edge_ids = edges_of(first, last)
        candidates = [
            source[ids]
            for source, ids in ((of_edges, edge_ids), (of_sources, sources))
            if source is not None
        ]
        # An edge may be seen only from its source's time on.
        seen = np.asarray(candidates[0] if len(candidates) == 1 else np.maximum(*candidates))
        _order_by_time(read_only(seen), read_only(indptr), first, last, times, by_time)
        release_pages(times, by_time)


@kernel
def _order_by_time(seen: Ids, indptr: Ids, first: int, last: int, times: Ids, by_time: Ids) -> None:
    """Sort the times of the lists in [``first``, ``last``), ties by position, into ``times``, and
    the edges' positions into ``by_time``."""
    begin = indptr[first]
    for node in range(first, last):
        start, stop = indptr[node], indptr[node + 1]
        order = np.argsort(seen[start - begin : stop - begin], kind="mergesort")
        for rank in range(stop - start):
            times[start + rank] = seen[start - begin + order[rank]]
            by_time[start + rank] = order[rank]
