"""Ids of all node types in one space, type after type, and arrays with a number for each node."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopper.graph.array_file import create_array, release_pages
from hopper.graph.memory_budget import memory_budget, row_ranges
from hopper.graph.schema import GraphSchema
from hopper.graph.topology import Ids, Topology


def hash_word(text: str) -> int:
    """Return the first eight bytes of a text's SHA-256, little-endian. No stream of draws of
    docs/inside/draws.md begins with such a word: they begin with small numbers."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def count_nodes(schema: GraphSchema) -> int:
    """Return the number of nodes of all types."""
    return sum(kind.count for kind in schema.node_types.values())


def type_slices(schema: GraphSchema) -> dict[str, slice]:
    """Return the stacked ids of every node type, types in the order of the schema."""
    counts = [kind.count for kind in schema.node_types.values()]
    bounds = pairwise(accumulate(counts, initial=0))
    return {name: slice(*ids) for name, ids in zip(schema.node_types, bounds, strict=True)}


def split_by_type(schema: GraphSchema, stacked: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Divide an array by stacked id into a view for each node type."""
    return {name: stacked[ids] for name, ids in type_slices(schema).items()}


def iter_edges(topology: Topology) -> Iterator[tuple[int, Ids, Ids]]:
    """Yield the number of the first edge, and sources and destinations, of pieces of a CSC."""
    for first, last in row_ranges(topology.indptr, 0, topology.indptr.size - 1):
        bounds = topology.indptr[first : last + 1]
        sources = topology.indices[bounds[0] : bounds[-1]].astype(np.int64)
        yield int(bounds[0]), sources, np.repeat(np.arange(first, last), np.diff(bounds))
        release_pages(topology.indptr, topology.indices)


class NodeArrays:
    """Makes arrays with a number for each node, in memory while they fit, else in files, of which
    the kernel drops pages when memory is short. A file is removed as soon as it is mapped."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".node-array.npy"
        self._left = memory_budget().resident

    def full(self, count: int, dtype: DTypeLike, value: int = 0) -> NDArray[Any]:
        """Make an array [count] of one value."""
        size = count * np.dtype(dtype).itemsize
        if size <= self._left:
            self._left -= size
            return np.full(count, value, dtype)
        array = create_array(self._file, dtype, (count,))
        self._file.unlink()
        if value:
            array[:] = value
        return np.asarray(array)
