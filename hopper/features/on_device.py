"""A cache of feature rows in the memory of the training device.

A hit costs no copy to the device. A miss reads the row from its source and copies it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from threading import RLock, local

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.array_module import Array, array_module, on_host
from hopper.device_copies import to_device
from hopper.features.cached import CountedLookups, Counts, RowCacheLike
from hopper.features.source import FeatureSource


class _CountsOfThread(Counts, local):
    """Counts of which every thread has its own."""


class DeviceRows(CountedLookups):
    """Feature rows, in the dtype in which they are stored, of which some are cached on a device.

    Each thread counts its own hits and misses.
    """

    def __init__(
        self, device: torch.device, caches: Mapping[str, RowCacheLike], one_reader: RLock
    ) -> None:
        super().__init__(caches, _CountsOfThread())
        self._one_reader = one_reader
        self.evicts = any(cache.evicts for cache in caches.values())
        self._device = device
        self._np = array_module(device.type)

    def read(self, source: FeatureSource, node_type: str, ids: NDArray[np.int64]) -> Tensor:
        """Return the features of [n] int64 ids on the device, missing ones from ``source``."""
        cache = self._caches.get(node_type)
        if cache is None:
            return to_device(source.gather("features", node_type, ids), self._device)
        out = self._np.empty((ids.size, cache.dim), cache.dtype)
        places, fetch = self._np.arange(ids.size), partial(self._fetch, source, node_type)
        with self._one_reader:
            self.look_up(node_type, self._np.asarray(ids), out, places, fetch)
        return torch.as_tensor(out, device=self._device)

    def absent(self, node_type: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of [n] int64 ids whose rows are not cached on the device."""
        cache = self._caches.get(node_type)
        if cache is None:
            return ids
        with self._one_reader:
            return ids[on_host(cache.find(self._np.asarray(ids))) < 0]

    def _fetch(
        self, source: FeatureSource, node_type: str, ids: Array, out: Array, places: Array
    ) -> None:
        rows = to_device(source.gather("features", node_type, on_host(ids)), self._device)
        out[places] = self._np.asarray(rows)
