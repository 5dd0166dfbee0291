"""Build the undirected simple graph of all node types and relations, which METIS divides.

As in DistDGLv2, section 4.1.1, node types are stacked into one id space, and relations are not told
apart. Edges in both directions and parallel edges become one undirected edge. Self-loops are left
out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel, read_only
from hopper.partition.stacked_ids import EdgesOfTypes, count_nodes, type_starts

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Adjacency:
    """An undirected simple graph; every edge is in the rows of both of its ends."""

    indptr: Ids
    """[nodes + 1] int64"""
    indices: Ids
    """[2 * undirected edges] int64, ascending within a row"""

    @property
    def nodes(self) -> int:
        """Number of nodes of all types."""
        return self.indptr.size - 1


def symmetrize(graph: EdgesOfTypes) -> Adjacency:
    """Build the undirected graph over stacked ids in two passes over the edges.

    Peak memory: 16 bytes an edge of the graph and 24 bytes a node; the result keeps 8 bytes per
    stored end.
    """
    indptr = np.zeros(count_nodes(graph.schema) + 1, np.int64)
    _visit_ends(graph, indptr[1:], np.empty(0, np.int64))
    np.cumsum(indptr, out=indptr)
    ends, cursor = np.empty(int(indptr[-1]), np.int64), indptr[:-1].copy()
    _visit_ends(graph, cursor, ends)
    _sort_rows(indptr, ends, cursor)
    simple = _compact(indptr, ends, cursor)
    # Free the memory of duplicates before METIS takes its own.
    ends.resize(int(simple[-1]), refcheck=False)
    return Adjacency(simple, ends)


def _visit_ends(graph: EdgesOfTypes, cursor: Ids, ends: Ids) -> None:
    """Advance every node's cursor by one an edge end and, if there is room, write the other end."""
    starts = type_starts(graph.schema)
    for relation in graph.schema.relations:
        edges = graph.topology(relation)
        lists = read_only(np.asarray(edges.indptr)), read_only(np.asarray(edges.indices))
        _visit_relation(*lists, starts[relation.src], starts[relation.dst], cursor, ends)


@kernel
def _visit_relation(
    indptr: Ids, indices: Ids, src_start: int, dst_start: int, cursor: Ids, ends: Ids
) -> None:
    is_writing = ends.size > 0
    for row in range(indptr.size - 1):
        v = row + dst_start
        for edge in range(indptr[row], indptr[row + 1]):
            u = indices[edge] + src_start
            if u == v:
                continue
            if is_writing:
                ends[cursor[u]] = v
                ends[cursor[v]] = u
            cursor[u] += 1
            cursor[v] += 1


@kernel(parallel=True)
def _sort_rows(indptr: Ids, ends: Ids, num_kept: Ids) -> None:
    """Sort every row, move its distinct ends to its front, and store their number."""
    for row in numba.prange(indptr.size - 1):
        values = ends[indptr[row] : indptr[row + 1]]
        values.sort()
        size = 0
        for i in range(values.size):
            if i == 0 or values[i] != values[i - 1]:
                values[size] = values[i]
                size += 1
        num_kept[row] = size


@kernel
def _compact(indptr: Ids, ends: Ids, num_kept: Ids) -> Ids:
    """Move the rows together, in place; return their new bounds, [nodes + 1] int64."""
    simple = np.zeros(indptr.size, np.int64)
    for row in range(num_kept.size):
        start = simple[row]
        for i in range(num_kept[row]):
            ends[start + i] = ends[indptr[row] + i]
        simple[row + 1] = start + num_kept[row]
    return simple
