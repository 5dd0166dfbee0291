"""Averages neighbours' rows over whole relations, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hopper.graph.topology import Topology

_BLOCK_BYTES: Final = 64 * 2**20
"""The bytes of the rows and edges of one block."""
_EDGE_BYTES: Final = 12

Rows = NDArray[np.float32]


def average_neighbours(topologies: Sequence[Topology], rows: Sequence[Rows], out: Rows) -> None:
    """Average the rows of each destination's in-neighbours over all relations together, which lead
    into one type and have the rows [sources, dim] of their source types; write the means to ``out``
    [destinations, dim], zero for nodes without neighbours."""
    for first, stop in _blocks(topologies, out):
        total = np.zeros((stop - first, out.shape[1]), np.float32)
        degrees = np.zeros(stop - first, np.int64)
        for topology, sources in zip(topologies, rows, strict=True):
            indptr = np.asarray(topology.indptr[first : stop + 1])
            indices = np.asarray(topology.indices[indptr[0] : indptr[-1]])
            shape = stop - first, topology.out_degrees.size
            ones = np.ones(indices.size, np.float32)
            total += sparse.csr_matrix((ones, indices, indptr - indptr[0]), shape) @ sources
            degrees += np.diff(indptr)
        out[first:stop] = total / np.maximum(degrees, 1)[:, None].astype(np.float32)


def _blocks(topologies: Sequence[Topology], out: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield ranges of destinations whose rows and edges fit into a block, one at least."""
    ends = sum(np.asarray(topology.indptr) for topology in topologies)
    assert not isinstance(ends, int)
    cost = ends * _EDGE_BYTES + np.arange(ends.size) * (2 * out.shape[1] * out.itemsize)
    first, count = 0, out.shape[0]
    while first < count:
        fits = int(np.searchsorted(cost, cost[first] + _BLOCK_BYTES, "right")) - 1
        stop = min(max(first + 1, fits), count)
        yield first, stop
        first = stop
