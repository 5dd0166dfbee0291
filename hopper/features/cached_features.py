"""Features that a cache may hold: their number, what a miss costs, and filling the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.device.array_module import array_module
from hopper.device.copies import finish_copies, to_device
from hopper.features.cache_plan import CachePlan, TypeProfile
from hopper.features.cached import DeviceRows
from hopper.features.partitioned import PartitionedRows
from hopper.features.row_cache import RecentRows, RowCache
from hopper.features.source import Mask, distinct
from hopper.graph.layout import stored_features
from hopper.graph.topology import Ids

_ROWS_AT_ONCE: Final = 1 << 16
_NOTHING: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class CachedFeatures:
    """Features of node types, by global id, for a cache on a device, or in host memory (None),
    which has rows of other servers only. ``stored_as`` maps types in subgraphs to node types.
    ``all_rows`` says whether a device's may hold rows of other servers."""

    names: Sequence[str]
    rows: PartitionedRows
    stored_as: Mapping[str, str]
    device: torch.device | None = None
    all_rows: bool = True

    def describe(self, name: str) -> TypeProfile:
        """Describe the stored rows of a node type, and how many of them a cache could hold."""
        (dim, dtype), count = self._row_form(name), self.count(name)
        own = self.rows.graph.stored(name, self.rows.server).count
        if self.device is None:
            count -= own
        elif not self.all_rows:
            count = own
        return TypeProfile(dim * dtype.itemsize, count, _NOTHING, _NOTHING)

    def count(self, name: str) -> int:
        """Return the number of nodes of a type in the whole graph."""
        return self.rows.graph.book.total(name)

    def is_own(self, name: str, ids: Ids) -> Mask:
        """Return which nodes' features are this server's, of which a miss costs less."""
        return self.rows.is_local(name, ids)

    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """Find the nodes, distinct by node type, whose features a cache could provide."""
        ids_by_type: dict[str, list[Ids]] = {name: [] for name in self.names}
        for name, groups in nodes.items():
            stored = self.stored_as.get(name, name)
            if stored in ids_by_type:
                ids_by_type[stored] += [
                    ids if self.device is not None else ids[~self.rows.is_local(stored, ids)]
                    for ids in groups
                ]
        return {name: distinct(groups) for name, groups in ids_by_type.items()}

    def miss(self, name: str, ids: Ids) -> None:
        """Do the work that missing these rows causes: fetch them, or copy them to the device."""
        rows = self._gather(name, ids)
        if self.device is not None:
            to_device(rows, self.device)
            finish_copies(self.device)

    def fill(self, plan: CachePlan) -> None:
        """Make the cache that a plan describes."""
        rows, caches = self.rows, {name: self._make_cache(name, plan) for name in self.names}
        if self.device is None:
            rows.attach_cache(caches)
            return
        rows.on_device = DeviceRows(self.device, caches, rows.one_reader)
        # Rows that were read to fill the cache do not count as training's.
        rows.take_rows()

    def _make_cache(self, name: str, plan: CachePlan) -> RowCache:
        module = np if self.device is None else array_module(self.device.type)
        cache_class = RecentRows if plan.policy == "lru" else RowCache
        cache = cache_class(self.count(name), plan.room[name], *self._row_form(name), module)
        wanted = np.sort(plan.held[name])
        for first in range(0, wanted.size, _ROWS_AT_ONCE):
            ids = wanted[first : first + _ROWS_AT_ONCE]
            cache.put(module.asarray(ids), module.asarray(self._gather(name, ids)))
        return cache

    def _gather(self, name: str, ids: Ids) -> NDArray[Any]:
        source = self.rows.remote if self.device is None else self.rows
        assert source is not None
        return source.gather("features", name, ids)

    def _row_form(self, name: str) -> tuple[int, np.dtype[Any]]:
        """Return the number of columns and the dtype of stored rows."""
        stored = stored_features(self.rows.graph.schema.table(name))
        assert stored is not None
        return stored.columns, stored.dtype
