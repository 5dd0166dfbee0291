"""Rows while neighbours are averaged: features, random rows, and averages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from cache_server.feature_codec import CODECS
from hopper.graph.array_file import create_array
from hopper.graph.directory import GraphDirectory
from hopper.hetero.learnable import first_rows
from hopper.hetero.precompute.neighbours import Rows

_BLOCK_ROWS: Final = 1 << 16


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
