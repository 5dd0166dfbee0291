"""Scan a stored CSC for the first error, in memory of a few bytes a node.

Mapped arrays are read a piece at a time, and the pages of each piece are given back after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.errors import GraphError
from hopper.graph.array_file import find_first, iter_pieces, release_pages
from hopper.graph.check_values import find_outside
from hopper.graph.layout import TopologyArray, topology_file
from hopper.graph.memory_budget import memory_budget
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology


def check_bounds(topology: Topology, relation: Relation, root: Path) -> None:
    """Check that no index of a relation's CSC is out of bounds, as kernels rely on.

    Raises
    ------
    GraphError: ``indptr`` does not rise from 0 to the number of edges, or a source id is out of
        range. The text names the file, the index, expected and given.
    """
    refuse = partial(_refuse, root, relation)
    indptr, edges, sources = topology.indptr, topology.indices.size, topology.out_degrees.size

    def is_wrong(first: int, bounds: NDArray[Any]) -> NDArray[np.bool_]:
        before = np.concatenate(([indptr[first - 1] if first else 0], bounds[:-1]))
        return (bounds < before) | (bounds > edges)

    row = 0 if indptr[0] != 0 else find_first(indptr, is_wrong)
    if row < 0 and indptr[-1] != edges:
        row = indptr.size - 1
    if row >= 0:
        expected = f"to start at 0, never to fall and to end at the number of edges, {edges}"
        raise refuse("indptr", f"at {row}", expected, int(indptr[row]))
    edge = find_outside(topology.indices, 0, sources)
    if edge >= 0:
        value = int(topology.indices[edge])
        raise refuse("indices", f"at {edge}", f"an id in [0, {sources})", value)


def check_lists(topology: Topology, relation: Relation, root: Path) -> None:
    """Check that a server has all in-edges of the nodes whose lists it stores, as draws rely on.

    Raises
    ------
    GraphError: a list has another length. The text names the file, the node, expected and given.
    """
    assert topology.stored is not None
    ids = topology.stored.all_ids()

    def is_wrong(first: int, nodes: NDArray[Any]) -> NDArray[np.bool_]:
        return _lengths(topology, first, nodes) != topology.in_degrees[nodes]

    row = find_first(ids, is_wrong)
    if row >= 0:
        length, degree = np.diff(topology.indptr[row : row + 2])[0], topology.in_degrees[ids[row]]
        where = f"of node {ids[row]}"
        raise _refuse(root, relation, "indptr", where, f"{degree} edges", int(length))


def check_topology(topology: Topology, relation: Relation, root: Path) -> None:
    """Check all values of a relation's CSC, as stored in a graph directory.

    This takes 8 bytes a source node and a bit an edge. Where memory may hold less
    (:mod:`hopper.graph.memory_budget`), it reads the edges several times.

    Raises
    ------
    GraphError: ``indptr`` does not rise from 0 to the number of edges, a source id is out of
        range, in-neighbours are not ascending by (source id, edge id), ``edge_ids`` is not a
        permutation of the edges, or degrees disagree. The text names the file, the index, expected
        and given.
    """
    check_bounds(topology, relation, root)
    refuse, edges = partial(_refuse, root, relation), topology.indices.size
    edge = find_outside(topology.edge_ids, 0, edges)
    if edge >= 0:
        value = int(topology.edge_ids[edge])
        raise refuse("edge_ids", f"at {edge}", f"an id in [0, {edges})", value)
    edge = _first_repeated(topology.edge_ids)
    if edge >= 0:
        repeated = f"{int(topology.edge_ids[edge])} twice"
        raise refuse("edge_ids", f"at {edge}", "every edge id once", repeated)
    edge = _first_unsorted(topology)
    if edge >= 0:
        pairs = [(int(topology.indices[i]), int(topology.edge_ids[i])) for i in (edge - 1, edge)]
        expected = "in-neighbours ascending by (source id, edge id)"
        raise refuse("indices", f"at {edge}", expected, f"{pairs[0]} before {pairs[1]}")
    row = find_first(topology.in_degrees, lambda first, of: _lengths(topology, first, of) != of)
    if row >= 0:
        expected = f"{int(topology.indptr[row + 1] - topology.indptr[row])}, as indptr says"
        raise refuse("in_degrees", f"of node {row}", expected, int(topology.in_degrees[row]))
    row, degree = _first_bad_out_degree(topology)
    if row >= 0:
        expected = f"{degree}, as indices says"
        raise refuse("out_degrees", f"of node {row}", expected, int(topology.out_degrees[row]))


def _refuse(
    root: Path, relation: Relation, array: TopologyArray, place: str, expected: str, value: object
) -> GraphError:
    file = topology_file(root, relation, array)
    return GraphError(f"{file}: {array} of {relation}: {place}: expected {expected}, given {value}")


def _lengths(topology: Topology, start: int, degrees: NDArray[Any]) -> NDArray[np.int64]:
    """Return the lengths of the lists of nodes ``start ..``, as many as ``degrees`` has."""
    lengths = np.diff(topology.indptr[start : start + degrees.size + 1])
    release_pages(topology.indptr)
    return lengths


def _first_repeated(edge_ids: NDArray[Any]) -> int:
    """Return the first index whose value occurs before it, or -1; values must be in [0, edges)."""
    repeated = -1
    for low, high in _ranges(edge_ids.size, 8 * memory_budget().resident):
        seen = np.zeros((high - low + 7) // 8, np.uint8)
        for start, piece in iter_pieces(edge_ids):
            index = _find_repeated(piece, low, high, seen)
            if index >= 0:
                repeated = start + index if repeated < 0 else min(repeated, start + index)
                break
    return repeated


def _first_unsorted(topology: Topology) -> int:
    """Return the first edge that does not follow its predecessor by (source id, edge id), or -1."""
    indptr, indices, edge_ids = topology.indptr, topology.indices, topology.edge_ids

    def is_wrong(first: int, sources: NDArray[Any]) -> NDArray[np.bool_]:
        # Each edge is compared with the one before it, but for the first of a list.
        ids, last = edge_ids[first : first + sources.size], max(0, first - 1)
        before, before_ids = indices[last:][: sources.size], edge_ids[last:][: sources.size]
        if first == 0:
            before, before_ids = np.append(-1, before[:-1]), np.append(-1, before_ids[:-1])
        wrong = (sources < before) | ((sources == before) & (ids <= before_ids))
        rows = slice(*np.searchsorted(indptr, (first, first + sources.size)))
        for _, starts in iter_pieces(indptr[rows]):
            wrong[starts - first] = False
        release_pages(edge_ids)
        return wrong

    return find_first(indices, is_wrong)


def _first_bad_out_degree(topology: Topology) -> tuple[int, int]:
    """Return the first node whose out-degree is wrong, and its right one; or (-1, 0)."""
    for low, high in _ranges(topology.out_degrees.size, max(1, memory_budget().resident // 8)):
        degrees = np.zeros(high - low, np.int64)
        for _, piece in iter_pieces(topology.indices):
            np.add.at(degrees, piece[(piece >= low) & (piece < high)] - low, 1)
        row = find_first(topology.out_degrees[low:high], partial(_differ, degrees))
        if row >= 0:
            return low + row, int(degrees[row])
    return -1, 0


def _differ(right: NDArray[Any], first: int, piece: NDArray[Any]) -> Any:
    return piece != right[first : first + piece.size]


def _ranges(count: int, at_once: int) -> Iterator[tuple[int, int]]:
    """Divide [0, ``count``) into ranges of ``at_once`` numbers."""
    for low in range(0, count, at_once):
        yield low, min(count, low + at_once)


@kernel
def _find_repeated(edge_ids: NDArray[Any], low: int, high: int, seen: NDArray[np.uint8]) -> int:
    """Find a value in [``low``, ``high``) with a bit in ``seen``; add the bits of the others."""
    for index in range(edge_ids.size):
        if edge_ids[index] < low or edge_ids[index] >= high:
            continue
        byte = (edge_ids[index] - low) >> 3
        bit = np.uint8(1 << ((edge_ids[index] - low) & 7))
        if seen[byte] & bit:
            return index
        seen[byte] |= bit
    return -1
