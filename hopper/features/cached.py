"""Caches in front of a source of rows, in host memory or on a device, and their hits and misses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from threading import RLock, local
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device.array_module import Array, array_module, on_host
from hopper.device.copies import to_device
from hopper.features.row_cache import RowCache
from hopper.features.source import FeatureSource, RemoteSource, RowKind
from hopper.graph.topology import Ids


class Lookups(NamedTuple):
    """Numbers of rows that a cache was asked for: it had the ``hits`` and lacked the ``misses``."""

    hits: int = 0
    misses: int = 0

    def plus(self, other: Lookups) -> Lookups:
        """Return the sum of both counts."""
        return Lookups(self.hits + other.hits, self.misses + other.misses)


def look_up(
    cache: RowCache,
    ids: Ids,
    out: NDArray[Any],
    places: Ids,
    fetch: Callable[[Ids, NDArray[Any], Ids], None],
) -> Lookups:
    """Write the rows of [n] int64 ids to ``out[places]``: cached ones, and those that ``fetch``
    writes there."""
    slots = cache.find(ids)
    is_hit = slots >= 0
    cache.copy(slots[is_hit], out, places[is_hit])
    missing_ids, missing_places = ids[~is_hit], places[~is_hit]
    if missing_ids.size:
        fetch(missing_ids, out, missing_places)
        cache.take_missed(missing_ids, out, missing_places)
    return Lookups(ids.size - missing_ids.size, missing_ids.size)


class _CountedCaches:
    """Caches by node type, and their lookups, as attributes of ``counts``."""

    def __init__(self, caches: Mapping[str, RowCache], counts: local | SimpleNamespace) -> None:
        self._caches = dict(caches)
        self._counts = counts

    @property
    def node_types(self) -> list[str]:
        """The node types that have a cache, in order of name."""
        return sorted(self._caches)

    def take_lookups(self) -> dict[str, Lookups]:
        """Return the counts by node type since the last call, and set them to zero."""
        lookups = vars(self._counts)
        counted = dict.fromkeys(self.node_types, Lookups()) | lookups
        lookups.clear()
        return counted

    def _look_up(
        self, node_type: str, ids: Array, out: Array, places: Array, fetch: Callable[..., None]
    ) -> None:
        counted = look_up(self._caches[node_type], ids, out, places, fetch)
        lookups = vars(self._counts)
        lookups[node_type] = lookups.get(node_type, Lookups()).plus(counted)


class CachedRows(_CountedCaches):
    """A source of remote rows that serves cached rows itself and fetches the others: features of
    types without a cache, and all labels."""

    def __init__(self, remote: RemoteSource, caches: Mapping[str, RowCache]) -> None:
        super().__init__(caches, SimpleNamespace())
        self._remote = remote

    def read_from(self, remote: RemoteSource) -> None:
        """Read the rows that these caches lack from another source."""
        self._remote = remote

    def uncached(self, node_type: str, ids: Ids) -> Ids:
        """Return those of [n] int64 ids that no cache holds permanently."""
        cache = self._caches.get(node_type)
        return ids if cache is None or cache.evicts else ids[cache.find(ids) < 0]

    def gather(self, kind: RowKind, node_type: str, ids: Ids) -> NDArray[Any]:
        """Read rows, cached ones from the cache; see :meth:`FeatureSource.gather`."""
        cache = self._caches.get(node_type)
        if kind != "features" or cache is None:
            return self._remote.gather(kind, node_type, ids)
        out = np.empty((ids.size, cache.dim), cache.dtype)
        self.fill(kind, node_type, ids, out, np.arange(ids.size))
        return out

    def fill(self, kind: RowKind, node_type: str, ids: Ids, out: NDArray[Any], places: Ids) -> None:
        """Read rows into a table, cached ones from the cache; see :meth:`RemoteSource.fill`."""
        fetch = partial(self._remote.fill, kind, node_type)
        if kind != "features" or node_type not in self._caches:
            fetch(ids, out, places)
        else:
            self._look_up(node_type, ids, out, places, fetch)


class DeviceRows(_CountedCaches):
    """Feature rows, in the dtype in which they are stored, of which some are cached on a device.
    Each thread counts its own hits and misses."""

    def __init__(
        self, device: torch.device, caches: Mapping[str, RowCache], one_reader: RLock
    ) -> None:
        super().__init__(caches, local())
        self._one_reader = one_reader
        self.evicts = any(cache.evicts for cache in caches.values())
        self._device = device
        self._np = array_module(device.type)

    def read(self, source: FeatureSource, node_type: str, ids: Ids) -> Tensor:
        """Return the features of [n] int64 ids on the device, missing ones from ``source``."""
        cache = self._caches.get(node_type)
        if cache is None:
            return to_device(source.gather("features", node_type, ids), self._device)
        out = self._np.empty((ids.size, cache.dim), cache.dtype)

        def fetch(ids: Array, out: Array, places: Array) -> None:
            rows = to_device(source.gather("features", node_type, on_host(ids)), self._device)
            out[places] = self._np.asarray(rows)

        with self._one_reader:
            places = self._np.arange(ids.size)
            self._look_up(node_type, self._np.asarray(ids), out, places, fetch)
        return torch.as_tensor(out, device=self._device)

    def absent(self, node_type: str, ids: Ids) -> Ids:
        """Return those of [n] int64 ids whose rows are not cached on the device."""
        cache = self._caches.get(node_type)
        if cache is None:
            return ids
        with self._one_reader:
            return ids[on_host(cache.find(self._np.asarray(ids))) < 0]
