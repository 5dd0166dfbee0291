"""Scan a stored CSC for an error, in memory of a few bytes a node.

Mapped arrays are read a piece at a time, and the pages of each piece are given back after it.
Errors are GraphErrors that name the file, the index or node, expected and given.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel, read_only
from hopper.errors import GraphError
from hopper.graph.array_file import find_first, release_pages
from hopper.graph.check_values import find_outside
from hopper.graph.layout import TopologyArray, topology_file
from hopper.graph.memory_budget import memory_budget, row_ranges
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids, Topology

_UNSORTED: Final = 1
_REPEATED: Final = 2


def check_bounds(topology: Topology, relation: Relation, root: Path) -> None:
    """Check that no index of a relation's CSC is out of bounds, as kernels rely on."""
    refuse = partial(_refuse, root, relation)
    indptr, edges, sources = topology.indptr, topology.indices.size, topology.out_degrees.size

    def is_wrong(row: int, ends: NDArray[Any]) -> NDArray[np.bool_]:
        return (ends < indptr[row : row + ends.size]) | (ends > edges)

    wrong = find_first(indptr[1:], is_wrong)
    if indptr[0] != 0 or wrong >= 0 or indptr[-1] != edges:
        row = 0 if indptr[0] != 0 else wrong + 1 if wrong >= 0 else indptr.size - 1
        expected = f"to start at 0, never to fall and to end at the number of edges, {edges}"
        raise refuse("indptr", f"at {row}", expected, indptr[row])
    edge = find_outside(topology.indices, 0, sources)
    if edge >= 0:
        raise refuse("indices", f"at {edge}", f"an id in [0, {sources})", topology.indices[edge])


def check_lists(topology: Topology, relation: Relation, root: Path) -> None:
    """Check that a server has all in-edges of the nodes whose lists it stores, as draws rely on; a
    GraphError names the file, the node, expected and given."""
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

    In-neighbours must ascend by (source id, edge id), ``edge_ids`` have every edge once, and
    degrees agree. This takes 8 bytes a source node and a bit an edge. Where memory may hold less
    (:mod:`hopper.graph.memory_budget`), it reads the edges several times.
    """
    check_bounds(topology, relation, root)
    refuse, edges = partial(_refuse, root, relation), topology.indices.size
    indptr, indices, edge_ids = map(
        read_only, (topology.indptr, topology.indices, topology.edge_ids)
    )
    edge = find_outside(edge_ids, 0, edges)
    if edge >= 0:
        raise refuse("edge_ids", f"at {edge}", f"an id in [0, {edges})", edge_ids[edge])
    row = find_first(topology.in_degrees, lambda first, of: _lengths(topology, first, of) != of)
    if row >= 0:
        expected = f"{indptr[row + 1] - indptr[row]}, as indptr says"
        raise refuse("in_degrees", f"of node {row}", expected, topology.in_degrees[row])
    sources, resident = topology.out_degrees.size, memory_budget().resident
    # A pass counts the edges of as many sources, and marks as many edge ids, as memory may hold.
    most_sources, most_ids = max(1, min(sources, resident // 8)), max(1, min(edges, 8 * resident))
    for number in range(max(-(-sources // most_sources), -(-edges // most_ids))):
        first_source, first_id = number * most_sources, number * most_ids
        degrees = np.zeros(max(0, min(most_sources, sources - first_source)), np.int64)
        seen = np.zeros(max(0, min(most_ids, edges - first_id) + 7) // 8, np.uint8)
        for rows in row_ranges(indptr, 0, indptr.size - 1):
            numbers = first_source, degrees, first_id, most_ids, seen
            fault, edge = _scan(indptr, indices, edge_ids, rows, *numbers)
            if fault == _UNSORTED:
                pairs = [f"({indices[i]}, {edge_ids[i]})" for i in (edge - 1, edge)]
                expected = "in-neighbours ascending by (source id, edge id)"
                raise refuse("indices", f"at {edge}", expected, " before ".join(pairs))
            if fault == _REPEATED:
                twice = f"{edge_ids[edge]} twice"
                raise refuse("edge_ids", f"at {edge}", "every edge id once", twice)
            release_pages(topology.indptr, topology.indices, topology.edge_ids)
        stored = topology.out_degrees[first_source : first_source + degrees.size]
        row = find_first(stored, partial(_differ, degrees))
        if row >= 0:
            expected, node = f"{degrees[row]}, as indices says", f"of node {first_source + row}"
            raise refuse("out_degrees", node, expected, stored[row])


def _refuse(
    root: Path, relation: Relation, array: TopologyArray, place: str, expected: str, value: object
) -> GraphError:
    file = topology_file(root, relation, array)
    return GraphError(f"{file}: {array} of {relation}: {place}: expected {expected}, given {value}")


def _differ(right: NDArray[Any], first: int, piece: NDArray[Any]) -> Any:
    return piece != right[first : first + piece.size]


def _lengths(topology: Topology, start: int, degrees: NDArray[Any]) -> Ids:
    """Return the lengths of the lists of nodes ``start ..``, as many as ``degrees`` has."""
    lengths = np.diff(topology.indptr[start : start + degrees.size + 1])
    release_pages(topology.indptr)
    return lengths


@kernel
def _scan(
    indptr: Ids,
    indices: NDArray[Any],
    edge_ids: NDArray[Any],
    rows: tuple[int, int],
    first_source: int,
    degrees: Ids,
    first_id: int,
    num_ids: int,
    seen: NDArray[np.uint8],
) -> tuple[int, int]:
    """Count sources and mark edge ids of a range of rows; return the first fault and its edge."""
    for row in range(rows[0], rows[1]):
        for edge in range(indptr[row], indptr[row + 1]):
            source, number = indices[edge] - first_source, edge_ids[edge] - first_id
            if edge > indptr[row]:
                step = indices[edge] - indices[edge - 1]
                if step < 0 or (step == 0 and edge_ids[edge] <= edge_ids[edge - 1]):
                    return _UNSORTED, edge
            if 0 <= number < num_ids:
                bit = np.uint8(1 << (number & 7))
                if seen[number >> 3] & bit:
                    return _REPEATED, edge
                seen[number >> 3] |= bit
            if 0 <= source < degrees.size:
                degrees[source] += 1
    return 0, 0
