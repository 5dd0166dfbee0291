"""Arrays of which every server has the entries of its own nodes in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.store.npy import map_npy

MapFile = Callable[[Path, int], NDArray[Any]]
"""Maps a .npy file of int64 that must have so many entries."""


class ShardedArray:
    """[nodes] int64 by global id, in a file for each server, mapped when it is first read.

    It is indexed by ids or a slice, as an array is. ``np.asarray`` joins all files in memory.

    Parameters
    ----------
    file: the name that the array would have in one file.
    offsets: the first global id of every server, then the number of nodes.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, file: Path, offsets: Sequence[int], map_file: MapFile) -> None:
        self._offsets = np.asarray(offsets, np.int64)
        counts = np.diff(self._offsets).tolist()
        self.size = int(self._offsets[-1])
        self._shard = lru_cache(None)(lambda i: map_file(shard_file(file, i), counts[i]))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(self.size)
            home = int(np.searchsorted(self._offsets, start, "right")) - 1
            if start < stop <= self._offsets[min(home + 1, self._offsets.size - 1)]:
                first = self._offsets[home]
                return self._shard(home)[start - first : stop - first : step]
            key = np.arange(start, stop, step)
        ids = np.asarray(key).reshape(-1)
        homes = np.searchsorted(self._offsets, ids, "right") - 1
        order = np.argsort(homes, kind="stable")
        bounds = np.searchsorted(homes[order], np.arange(self._offsets.size))
        if bounds[0] or bounds[-1] < ids.size:
            raise IndexError(f"expected ids in [0, {self.size})")
        entries = np.empty(ids.size, np.int64)
        for server in np.flatnonzero(np.diff(bounds)).tolist():
            part = order[bounds[server] : bounds[server + 1]]
            entries[part] = self._shard(server)[ids[part] - self._offsets[server]]
        return entries.reshape(np.shape(key))[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[np.arange(self.size)], dtype)


def shard_file(file: Path, server: int) -> Path:
    """Return the file of one server's entries of an array."""
    return file.with_name(f"{file.stem}-{server}{file.suffix}")


def map_by_node(file: Path, offsets: Sequence[int], map_file: MapFile) -> Any:
    """Map an array by global id, typed as any array: one file, or else a :class:`ShardedArray`."""
    if file.exists() or not shard_file(file, 0).exists():
        return map_file(file, int(offsets[-1]))
    return ShardedArray(file, offsets, map_file)


def map_original_ids(root: Path, node_type: str, offsets: Sequence[int]) -> Any:
    """Map a node type's original ids by global id in a served directory; raise ManifestError."""
    file = root / "maps" / node_type / "original_ids.npy"
    return map_by_node(file, offsets, lambda file, count: map_npy(file, np.int64, (count,)))
