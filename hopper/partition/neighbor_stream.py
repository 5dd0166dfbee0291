"""Read the in-neighbours of all nodes from disk, chunk by chunk, in passes.

Node types are stacked into one id space, and relations are not told apart, as for METIS. But the
graph is not made symmetric: the streaming partitioner needs the in-neighbours of a node, because
sampling fetches these for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.array_file import iter_pieces, release_pages
from hopper.graph.memory_budget import memory_budget
from hopper.graph.topology import Topology
from hopper.partition.stacked_ids import EdgesOfTypes, count_nodes, type_starts

Ids = NDArray[np.int64]
ROWS_AT_ONCE: Final = 1 << 16
EDGES_AT_ONCE: Final = 1 << 21
# Decisions within a chunk do not see each other, so even a small graph is read in many.
_FEWEST_CHUNKS: Final = 64


class Chunk(NamedTuple):
    """The in-neighbours of consecutive nodes, in stacked ids."""

    first: int
    """stacked id of the first node"""
    indptr: Ids
    """[nodes + 1] int64, bounds of each node's in-neighbours, from 0"""
    neighbors: Ids
    """[edges] int64, a node's in-neighbours under one relation after those under another"""


class NeighborStream:
    """Reads the in-neighbours of all nodes in passes, with one chunk in memory at a time."""

    def __init__(self, graph: EdgesOfTypes) -> None:
        schema = graph.schema
        self._starts = type_starts(schema)
        self._counts = {name: kind.count for name, kind in schema.node_types.items()}
        # By destination type: the first stacked id of the sources, and the edges.
        self._into: dict[str, list[tuple[int, Topology]]] = {name: [] for name in self._counts}
        for relation, kind in schema.relations.items():
            if kind.count:
                part = self._starts[relation.src], graph.topology(relation)
                self._into[relation.dst].append(part)
        self.nodes = count_nodes(schema)
        self.edges = sum(kind.count for kind in schema.relations.values())
        self._rows_at_once = max(1, min(ROWS_AT_ONCE, self.nodes // _FEWEST_CHUNKS))
        self._edges_at_once = min(EDGES_AT_ONCE, memory_budget().chunk // 8)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the lists of all nodes once, in the order of their stacked ids; a chunk may be used
        until the next one is asked for."""
        for node_type, parts in self._into.items():
            first, count = 0, self._counts[node_type]
            while first < count:
                last = self._chunk_end(parts, first, count)
                yield _read(parts, first, last, self._starts[node_type] + first)
                first = last
            for _, edges in parts:
                release_pages(edges.indptr, edges.indices)

    def have_neighbors(self, full: Callable[..., NDArray[Any]] = np.zeros) -> NDArray[np.bool_]:
        """Return [nodes] bool, which ``full`` makes: whether each node has any in-neighbours."""
        have: NDArray[np.bool_] = full(self.nodes, np.bool_)
        for node_type, parts in self._into.items():
            for _, edges in parts:
                for first, degrees in iter_pieces(edges.in_degrees):
                    start = self._starts[node_type] + first
                    have[start : start + degrees.size] |= degrees > 0
        return have

    def _chunk_end(self, parts: list[tuple[int, Topology]], first: int, count: int) -> int:
        """Return the row at which a chunk from row ``first`` ends (exclusive)."""

        def edges_before(row: int) -> int:
            return sum(int(edges.indptr[row]) for _, edges in parts)

        rows = range(first + 1, min(first + self._rows_at_once, count) + 1)
        fitting = bisect_right(rows, edges_before(first) + self._edges_at_once, key=edges_before)
        return rows[max(0, fitting - 1)]


def _read(parts: list[tuple[int, Topology]], first: int, last: int, stacked_first: int) -> Chunk:
    indptr = np.zeros(last - first + 1, np.int64)
    for _, edges in parts:
        np.add(indptr[1:], np.diff(edges.indptr[first : last + 1]), out=indptr[1:])
    np.cumsum(indptr, out=indptr)
    neighbors = np.empty(int(indptr[-1]), np.int64)
    cursor = indptr[:-1].copy()
    for src_start, edges in parts:
        start, stop = int(edges.indptr[first]), int(edges.indptr[last])
        sources = edges.indices[start:stop]
        _append_rows(edges.indptr[first : last + 1] - start, sources, src_start, cursor, neighbors)
        release_pages(edges.indices)
    return Chunk(stacked_first, indptr, neighbors)


@kernel(parallel=True)
def _append_rows(indptr: Ids, indices: Ids, src_start: int, cursor: Ids, neighbors: Ids) -> None:
    """Append one relation's neighbours to each node's list, and move the cursors."""
    for row in numba.prange(cursor.size):
        for edge in range(indptr[row], indptr[row + 1]):
            neighbors[cursor[row] + edge - indptr[row]] = indices[edge] + src_start
        cursor[row] += indptr[row + 1] - indptr[row]
