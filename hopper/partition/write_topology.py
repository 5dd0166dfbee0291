"""Write topology in global ids, streamed, so that memory holds a few pieces of an array.

A server's edges are written by themselves, from the graph and files that all parts share, so
servers' parts can be built anywhere and in any order. Source and edge ids are as wide as in the
graph.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph import layout
from hopper.graph.array_file import create_array, iter_pieces, open_range_writer, release_pages
from hopper.graph.memory_budget import edges_at_once, row_ranges
from hopper.graph.schema import Relation
from hopper.partition.build_context import BuildContext
from hopper.partition.sampling_index import write_sampling_index
from hopper.timing.phases import Progress

Ids = NDArray[np.int64]
BY_EDGE: Final[tuple[layout.StoredArray, ...]] = ("indices", "edge_ids")


def lay_out_topology(context: BuildContext, relation: Relation) -> None:
    """Write where every list of a relation stands in global ids, and degrees; the edges are zeros
    until :func:`fill_topology` writes them."""
    old = context.graph.topology(relation)
    src, dst = (context.maps[node_type] for node_type in (relation.src, relation.dst))

    def create(name: layout.StoredArray, like: NDArray[Any]) -> NDArray[Any]:
        file = layout.topology_file(context.work, relation, name)
        return create_array(file, like.dtype, like.shape)

    for out, degrees, nodes in (
        (create("in_degrees", old.in_degrees), old.in_degrees, dst),
        (create("out_degrees", old.out_degrees), old.out_degrees, src),
    ):
        for first, ids in iter_pieces(nodes.original_ids):
            out[first : first + ids.size] = degrees[ids]
        release_pages(out, degrees)
    indptr, last = create("indptr", old.indptr), 0
    for first, ids in iter_pieces(dst.original_ids):
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
        first, last = context.offsets[relation.dst][server : server + 2].tolist()
        cut = _fill_lists(context, relation, server, indptr, progress)
        counts[relation] = int(indptr[last] - indptr[first]), cut
    return counts


def _fill_lists(
    context: BuildContext, relation: Relation, server: int, indptr: Ids, progress: Progress
) -> int:
    """Write a server's edges of a relation; return the number of cut edges."""
    old = context.graph.topology(relation).read_only()
    src, dst = context.maps[relation.src], context.maps[relation.dst]
    src_first, src_stop = src.offsets[server : server + 2].tolist()
    files = [layout.topology_file(context.work, relation, name) for name in BY_EDGE]
    cut, nodes, at_once = 0, dst.offsets[server : server + 2].tolist(), edges_at_once()
    with open_range_writer(files[0]) as indices_at, open_range_writer(files[1]) as edge_ids_at:
        for first, last in row_ranges(indptr, *nodes):
            start, stop = int(indptr[first]), int(indptr[last])
            original_dst = np.asarray(dst.original_ids[first:last])
            # A single list may have more edges than are written at a time.
            for edge in range(start, stop, at_once):
                count = min(at_once, stop - edge)
                indices = np.empty(count, old.indices.dtype)
                edge_ids = np.empty(count, old.edge_ids.dtype)
                edges = *(old.indptr, old.indices, old.edge_ids, indptr), edge, indices, edge_ids
                _relabel_edges(first, original_dst, src.global_ids, *edges)
                indices_at(edge, indices)
                edge_ids_at(edge, edge_ids)
                cut += int(np.count_nonzero((indices < src_first) | (indices >= src_stop)))
                progress.advance(count)
            release_pages(old.indptr, old.indices, old.edge_ids, indptr)
    return cut


@kernel(parallel=True)
def _relabel_edges(
    first: int,
    original_dst: Ids,
    global_src: Ids,
    old_indptr: Ids,
    old_indices: NDArray[Any],
    old_edge_ids: NDArray[Any],
    indptr: Ids,
    start: int,
    indices: NDArray[Any],
    edge_ids: NDArray[Any],
) -> None:
    """Fill some edges of a relation's CSC in global ids, in the same order within a row.

    The rows from global id ``first`` on have the original ids ``original_dst``. The first of the
    edges has the index ``start`` in the CSC.
    """
    stop = start + indices.size
    for i in numba.prange(original_dst.size):
        shift = old_indptr[original_dst[i]] - indptr[first + i]
        for edge in range(max(indptr[first + i], start), min(indptr[first + i + 1], stop)):
            indices[edge - start] = global_src[old_indices[edge + shift]]
            edge_ids[edge - start] = old_edge_ids[edge + shift]


def fill_draw_arrays(context: BuildContext, progress: Progress, relation: Relation) -> None:
    """Write the arrays that draws read of a relation (:mod:`hopper.partition.sampling_index`) after
    its edges have been written; progress advances by edges."""
    indptr = context.whole(relation, "indptr")
    indices, edge_ids = (context.whole(relation, name) for name in BY_EDGE)
    original_ids = context.maps[relation.src].original_ids

    def edges_of(first: int, last: int) -> tuple[Ids, Ids]:
        piece = slice(int(indptr[first]), int(indptr[last]))
        progress.advance(piece.stop - piece.start)
        return original_ids[indices[piece]], edge_ids[piece]

    write_sampling_index(context.graph, context.work, relation, indptr, edges_of)
