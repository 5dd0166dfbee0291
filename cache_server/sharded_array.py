"""Numbers by id that lie in a file for each server, or in one file with fewer bytes a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray


class ShardedArray(NDArrayOperatorsMixin):
    """[ids] int32 or int64 in a file for each server, which is mapped when it is first read.

    It is indexed by ids or a slice, as an array is, and gives int64. ``np.asarray`` and operators
    join all files in memory. ``offsets`` are the first id of every file, then the number of ids.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, offsets: Sequence[int], map_shard: Callable[[int], NDArray[Any]]) -> None:
        self._offsets, self._shard = np.asarray(offsets, np.int64), lru_cache(None)(map_shard)
        self.size = int(self._offsets[-1])

    def __len__(self) -> int:
        return self.size

    def view(self, first: int, stop: int) -> NDArray[Any]:
        """Return the entries of a range, as wide as they are stored if one file has them all."""
        home = int(np.searchsorted(self._offsets, first, "right")) - 1
        if first < stop <= self._offsets[min(home + 1, self._offsets.size - 1)]:
            begin = int(self._offsets[home])
            return self._shard(home)[first - begin : stop - begin]
        return np.asarray(self[np.arange(first, stop)])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(self.size)
            if step == 1:
                return np.asarray(self.view(start, stop), np.int64)
            key = np.arange(start, stop, step)
        ids = np.asarray(key).reshape(-1)
        homes, servers = np.searchsorted(self._offsets, ids, "right") - 1, self._offsets.size - 1
        if ids.size and not 0 <= homes.min() <= homes.max() < servers:
            raise IndexError(f"expected ids in [0, {self.size})")
        # Numbers of 16 bits are sorted in one pass.
        order = np.argsort(homes.astype(np.uint16), kind="stable")
        bounds = np.cumsum([0, *np.bincount(homes, minlength=servers)])
        entries = np.empty(ids.size, np.int64)
        for server in np.flatnonzero(np.diff(bounds)).tolist():
            part = order[bounds[server] : bounds[server + 1]]
            entries[part] = self._shard(server)[ids[part] - self._offsets[server]]
        return entries.reshape(np.shape(key))[()]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (np.asarray(x) if isinstance(x, ShardedArray) else x for x in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)
