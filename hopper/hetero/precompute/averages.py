"""Averages of neighbours over whole relations, and the rows that they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cache_server.feature_codec import CODECS
from hopper.graph.array_file import create_array
from hopper.graph.directory import GraphDirectory
from hopper.graph.topology import Topology
from hopper.hetero.learnable import first_rows

_BLOCK_ROWS: Final = 1 << 16
_BLOCK_BYTES: Final = 64 * 2**20
"""The bytes of the rows and edges of one block."""
_EDGE_BYTES: Final = 12

Rows = NDArray[np.float32]


class Workspace:
    """Rows of a graph for averaging, as float32.

    Averages are in mapped files without a name in a folder, so memory does not limit them. Types
    without features have random rows of a width, which depend on a seed, on the type and on the
    node's id.
    """

    def __init__(self, graph: GraphDirectory, folder: Path, random_dim: int, seed: int) -> None:
        self.graph, self._folder = graph, folder
        self._random_dim, self._seed = random_dim, seed
        self._rows: dict[str, Rows] = {}

    def rows(self, node_type: str) -> Rows:
        """Return a type's features, or its random rows: [count, dim] float32."""
        if node_type not in self._rows:
            self._rows[node_type] = self._make_rows(node_type)
        return self._rows[node_type]

    def new(self, node_type: str, dim: int) -> Rows:
        """Return a mapped array of zeros, [count, dim] float32, for a type's nodes. Its disk space
        is freed together with the array."""
        file = self._folder / "rows.npy"
        count = self.graph.schema.node_types[node_type].count
        rows: Rows = create_array(file, np.float32, (count, dim))
        file.unlink()
        return rows

    def _make_rows(self, node_type: str) -> Rows:
        kind = self.graph.schema.node_types[node_type]
        out, blocks = None, range(0, kind.count, _BLOCK_ROWS)
        if kind.feature_dim is None:
            out = self.new(node_type, self._random_dim)
            for first in blocks:
                ids = np.arange(first, min(first + _BLOCK_ROWS, kind.count))
                out[ids] = first_rows(self._seed, node_type, ids, self._random_dim)
            return out
        features = self.graph.features(node_type)
        if features.dtype == np.float32:
            return np.asarray(features, np.float32)
        assert kind.feature_dtype is not None
        form, out = CODECS[kind.feature_dtype], self.new(node_type, kind.feature_dim)
        for first in blocks:
            out[first : first + _BLOCK_ROWS] = form.decode(features[first : first + _BLOCK_ROWS])
        return out


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
