"""Feature rows on the device that trains: some are held there, others are read and copied.

What a miss costs is then the whole way: reading a row, wherever it is stored, and copying it.
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
from hopper.features.cached import CountedLookups, Counts, HeldRows
from hopper.features.source import FeatureSource


class _CountsOfThread(Counts, local):
    """Every thread has its own."""


class DeviceRows(CountedLookups):
    """Rows of some nodes in the memory of a device. Every thread's lookups are counted apart.

    Hits and misses meet in one buffer, in the order asked for. Rows come out as they are stored.

    Parameters
    ----------
    held: by node type, of the array module of the device; rows of other types are copied.
    one_reader: of whoever is asked for missing rows: one lock for both, since either may be asked
        first.

    Attributes
    ----------
    evicts: whether rows make room for others.
    """

    def __init__(
        self, device: torch.device, held: Mapping[str, HeldRows], one_reader: RLock
    ) -> None:
        super().__init__(held, _CountsOfThread())
        self._one_reader = one_reader
        self.evicts = any(each.evicts for each in held.values())
        self._device = device
        self._np = array_module(device.type)

    def read(self, source: FeatureSource, node_type: str, ids: NDArray[np.int64]) -> Tensor:
        """[n, dim], on the device, in the dtype that is stored: features of [n] int64 global ids.

        Parameters
        ----------
        source: is asked for rows that are not here.
        """
        held = self._held.get(node_type)
        if held is None:
            return to_device(source.gather("features", node_type, ids), self._device)
        out = self._np.empty((ids.size, held.dim), held.dtype)
        places, fetch = self._np.arange(ids.size), partial(self._fetch, source, node_type)
        with self._one_reader:
            self.look_up(node_type, self._np.asarray(ids), out, places, fetch)
        return torch.as_tensor(out, device=self._device)

    def absent(self, node_type: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of [n] int64 ids whose rows are not here."""
        held = self._held.get(node_type)
        if held is None:
            return ids
        with self._one_reader:
            return ids[on_host(held.find(self._np.asarray(ids))) < 0]

    def _fetch(
        self, source: FeatureSource, node_type: str, ids: Array, out: Array, places: Array
    ) -> None:
        rows = to_device(source.gather("features", node_type, on_host(ids)), self._device)
        out[places] = self._np.asarray(rows)
