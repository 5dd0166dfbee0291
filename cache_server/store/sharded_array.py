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
    """[nodes] int64 by global id, in a file for each server.

    It is indexed by ids, by a slice or by a single id. A file is mapped when an entry of it is read
    for the first time. ``np.asarray`` joins all of them in memory.

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
        self.shard = lru_cache(None)(lambda i: map_file(shard_file(file, i), counts[i]))
        """called with a server: the entries of its nodes"""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, ids: Any) -> Any:
        if isinstance(ids, slice):
            return self._slice(*ids.indices(self.size))
        ids = np.asarray(ids)
        homes = np.searchsorted(self._offsets, ids.reshape(-1), "right") - 1
        order = np.argsort(homes, kind="stable")
        by_home = ids.reshape(-1)[order]
        bounds = np.searchsorted(homes[order], np.arange(self._offsets.size))
        if bounds[0] or bounds[-1] < ids.size:
            raise IndexError(f"expected ids in [0, {self.size})")
        found = np.empty(ids.size, np.int64)
        for server in np.flatnonzero(np.diff(bounds)).tolist():
            part = slice(bounds[server], bounds[server + 1])
            found[order[part]] = self.shard(server)[by_home[part] - self._offsets[server]]
        return found.reshape(ids.shape)[()]

    def take(
        self, ids: NDArray[np.int64], axis: None = None, out: None = None, mode: str = "raise"
    ) -> NDArray[np.int64]:
        """Return the entries of some ids, as ``np.take`` asks for them."""
        entries: NDArray[np.int64] = self[ids]
        return entries

    def _slice(self, start: int, stop: int, step: int) -> NDArray[np.int64]:
        bounds = self._offsets
        home = int(np.searchsorted(bounds, start, "right")) - 1
        if start < stop <= bounds[min(home + 1, bounds.size - 1)]:
            own: NDArray[np.int64] = self.shard(home)
            return own[start - bounds[home] : stop - bounds[home] : step]
        entries: NDArray[np.int64] = self[np.arange(start, stop, step)]
        return entries

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[np.arange(self.size)], dtype)


def shard_file(file: Path, server: int) -> Path:
    """Return the file of one server's entries of an array."""
    return file.with_name(f"{file.stem}-{server}{file.suffix}")


def map_by_node(file: Path, offsets: Sequence[int], map_file: MapFile) -> Any:
    """Map an array by global id: one file where there is one, else a :class:`ShardedArray`.

    It is typed as any array, since whoever reads it indexes it.
    """
    if file.exists() or not shard_file(file, 0).exists():
        return map_file(file, int(offsets[-1]))
    return ShardedArray(file, offsets, map_file)


def map_original_ids(root: Path, node_type: str, offsets: Sequence[int]) -> Any:
    """Map a node type's original ids by global id in a served directory; raise ManifestError."""
    file = root / "maps" / node_type / "original_ids.npy"
    return map_by_node(file, offsets, lambda file, count: map_npy(file, np.int64, (count,)))
