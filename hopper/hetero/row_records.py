"""Records of learnable rows: each row is stored together with its optimiser's state.

An update reads and writes a row and its state together. Records are [rows, parts, dim], and the
first part is the row. If records are on disk, some of them can be cached in memory for reading and
writing. The stored copy of a cached record is out of date until the record is written back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device.array_module import Array, array_module, on_host
from hopper.device.copies import to_device
from hopper.features.cached import Lookups, look_up
from hopper.features.row_cache import RecentRows, RowCache
from hopper.graph.topology import Ids
from hopper.hetero.sparse_optimizers import SparseOptimizer

_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True)
class LentRecords:
    """Records that were read and will be updated later."""

    places: Ids
    """[n], distinct: the indices of the records in the table"""
    records: Tensor
    """a contiguous copy [n, parts, dim] on the device, or the table itself [rows, parts, dim]"""
    in_table: bool
    """whether ``records`` is the table itself"""

    def gather(self, indices: Ids | None, out: Tensor) -> None:
        """Copy rows to ``out`` [m, dim], by their indices [m] in :attr:`places`; None = all."""
        if self.in_table:
            indices = self.places if indices is None else self.places[indices]
        if indices is None:
            out.copy_(self.records[:, 0])
        else:
            torch.index_select(self.records[:, 0], 0, to_device(indices, out.device), out=out)


class RowRecords:
    """The records of one rank's rows of a table, [rows, parts, dim], contiguous, which are read and
    written in place, and updated on a device."""

    def __init__(self, stored: Tensor, device: torch.device) -> None:
        self.stored = stored
        self._device = device
        self._lends_table = stored.device.type == device.type == "cpu"

    @property
    def rows(self) -> Tensor:
        """All stored rows [rows, dim]. They are up to date after :meth:`write_back`."""
        return self.stored[:, 0]

    @property
    def record_bytes(self) -> int:
        """The bytes of a row and its state."""
        return self.stored.shape[1:].numel() * self.stored.element_size()

    def read(self, places: Tensor) -> Tensor:
        """Copy records [n, parts, dim] in distinct places [n], int64, to the device."""
        return to_device(self.stored.index_select(0, places), self._device)

    def read_rows(self, places: Ids, out: Tensor) -> None:
        """Copy rows in places [n], int64, to ``out`` [n, dim], for reading only."""
        out.copy_(to_device(self.rows.index_select(0, self._as_places(places)), out.device))

    def lend(self, places: Ids) -> LentRecords:
        """Lend the records in distinct places [n], for reading rows and for one update, each read
        once for both. Nothing else may change them before :meth:`update`, which is optional."""
        if self._lends_table:
            return LentRecords(places, self.stored, in_table=True)
        return LentRecords(places, self.read(self._as_places(places)), in_table=False)

    def update(
        self,
        lent: LentRecords,
        optimizer: SparseOptimizer,
        gradient: Tensor,
        scale: float = 1.0,
        factor: float = 1.0,
    ) -> None:
        """Update lent records by the gradients [n, dim] of their rows, as
        :meth:`SparseOptimizer.step` does, and store them."""
        places = lent.places if lent.in_table else None
        optimizer.step(lent.records, gradient, places, scale=scale, factor=factor)
        if not lent.in_table:
            self.write(self._as_places(lent.places), lent.records)

    def _as_places(self, places: Ids) -> Tensor:
        return torch.from_numpy(places).to(self.stored.device)

    def write(self, places: Tensor, records: Tensor) -> None:
        """Store records [n, parts, dim] in distinct places [n], int64."""
        self.stored.index_copy_(0, places, records.to(self.stored.device))

    def write_back(self) -> None:
        """Bring :attr:`stored` up to date. Here it always is."""

    def read_again(self) -> None:
        """Take over changes that others made to :attr:`stored`. Here there is nothing to do."""

    def take_lookups(self) -> Lookups | None:
        """Return the cache lookups since the last call; None if there is no cache."""
        return None


class HeldRecords(RowRecords):
    """Records in host memory or on disk of which at most ``room`` are cached in the device's
    memory, where only they are up to date: those in distinct places [n], or (None) those that were
    read last."""

    def __init__(
        self,
        stored: Tensor,
        device: torch.device,
        room: int,
        places: NDArray[np.int64] | None,
    ) -> None:
        super().__init__(stored, device)
        self._lends_table = False
        self._np = array_module(device.type)
        self._shape = stored.shape[1:]
        self._table = stored.view(len(stored), self._shape.numel())
        self._lookups = Lookups()
        dtype = self._table[:0].numpy().dtype
        arguments = (len(stored), room, self._shape.numel(), dtype, self._np)
        if places is None:
            self._cache: RowCache = RecentRows(*arguments, evicted=self._put_back)
            return
        self._cache = RowCache(*arguments)
        ordered = np.sort(places)
        for first in range(0, ordered.size, _ROWS_AT_ONCE):
            ids = ordered[first : first + _ROWS_AT_ONCE]
            self._cache.put(self._np.asarray(ids), self._read_stored(ids))

    def read(self, places: Tensor) -> Tensor:
        """Read records from the cache, and missing ones from the stored table."""
        ids = self._np.asarray(places.numpy())
        out = self._np.empty((ids.size, self._shape.numel()), self._cache.dtype)
        lookups = look_up(self._cache, ids, out, self._np.arange(ids.size), self._fetch)
        self._lookups = self._lookups.plus(lookups)
        return torch.as_tensor(out, device=self._device).view(ids.size, *self._shape)

    def read_rows(self, places: Ids, out: Tensor) -> None:
        """Copy cached and stored rows, without changing what is cached."""
        slots = on_host(self._cache.find(self._np.asarray(places)))
        is_cached, dim = torch.from_numpy(slots >= 0), self._shape[1]
        cached = self._cache.rows[self._np.asarray(slots[slots >= 0])][:, :dim]
        out[is_cached.to(self._device)] = torch.as_tensor(cached, device=self._device)
        missing = self.rows.index_select(0, torch.from_numpy(places[slots < 0]))
        out[(~is_cached).to(self._device)] = to_device(missing, self._device)

    def write(self, places: Tensor, records: Tensor) -> None:
        """Overwrite cached records in the cache, and all others in the stored table."""
        ids = self._np.asarray(places.numpy())
        rows = self._np.asarray(records.view(len(records), self._shape.numel()))
        slots = self._cache.find(ids)
        is_cached = slots >= 0
        self._cache.change(slots[is_cached], rows, self._np.flatnonzero(is_cached))
        missing = torch.from_numpy(on_host(rows[~is_cached]))
        self._table.index_copy_(0, torch.from_numpy(on_host(ids[~is_cached])), missing)

    def write_back(self) -> None:
        """Write all cached records to the stored table."""
        self._put_back(self._cache.cached_ids, self._cache.rows)

    def read_again(self) -> None:
        """Read all cached records again from the stored table."""
        ids, rows = self._cache.cached_ids, self._cache.rows
        for first in range(0, len(ids), _ROWS_AT_ONCE):
            chunk = slice(first, first + _ROWS_AT_ONCE)
            rows[chunk] = self._read_stored(on_host(ids[chunk]))

    def take_lookups(self) -> Lookups | None:
        """Return the cache lookups since the last call."""
        taken, self._lookups = self._lookups, Lookups()
        return taken

    def _read_stored(self, ids: NDArray[np.int64]) -> Array:
        records = self._table.index_select(0, torch.from_numpy(ids))
        return self._np.asarray(to_device(records, self._device))

    def _fetch(self, ids: Array, out: Array, places: Array) -> None:
        out[places] = self._read_stored(on_host(ids))

    def _put_back(self, ids: Array, records: Array) -> None:
        # Sequential writes are faster on a disk.
        order = self._np.argsort(ids)
        for first in range(0, len(order), _ROWS_AT_ONCE):
            piece = order[first : first + _ROWS_AT_ONCE]
            rows = torch.from_numpy(on_host(records[piece]))
            self._table.index_copy_(0, torch.from_numpy(on_host(ids[piece])), rows)
