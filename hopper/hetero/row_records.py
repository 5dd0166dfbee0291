"""Learnable rows beside their optimiser's state: a record a node.

An update reads and writes a row and its state together, so they lie together: [rows, parts, dim],
of which the first part is the row. Where records are on disk some of them can be held in memory,
for reading and for writing: such a record has no other place until it is written back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.array_module import Array, array_module, on_host
from hopper.device_copies import to_device
from hopper.features.cached import Lookups, look_up
from hopper.hetero.row_cache import RecentRows, RowCache
from hopper.hetero.row_kernels import gather_rows
from hopper.hetero.sparse_optimizers import Factors, SparseOptimizer

_ROWS_AT_ONCE: Final = 1 << 16

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class PickedRows:
    """Some rows of a table, where a copy of them would be too large.

    Attributes
    ----------
    table: [rows, ...]. places: [n] int64.
    """

    table: Tensor
    places: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of a copy."""
        return torch.Size((len(self.places), *self.table.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """Of the table."""
        return self.table.dtype

    def split(self, size: int) -> Iterator[Tensor]:
        """[m, ...] copies, ``size`` rows each but the last."""
        for part in self.places.split(size):
            yield self.table.index_select(0, part)


@dataclass(frozen=True)
class LentRecords:
    """Records that are read, to be updated later.

    Attributes
    ----------
    places: [n] int64 distinct: of the records in the table.
    records: [n, parts, dim], contiguous, on the device, a copy of them; or [rows, parts, dim], the
        table itself.
    in_table: whether they are the table itself.
    """

    places: Ids
    records: Tensor
    in_table: bool

    def gather(self, which: Ids | None, out: Tensor) -> None:
        """Copy rows to [m, dim] ``out``.

        Parameters
        ----------
        which: [m] int64 below n; None = all, in order.
        """
        if self.in_table:
            gather_rows(self.records, self.places if which is None else self.places[which], out)
        elif which is None:
            out.copy_(self.records[:, 0])
        else:
            gather_rows(self.records, which, out)

    def update(self, optimizer: SparseOptimizer, gradient: Tensor, factors: Factors) -> None:
        """Update them by the gradients [n, dim] of their rows; see :meth:`RowRecords.take_back`."""
        optimizer.step(self.records, gradient, factors, self.places if self.in_table else None)


class RowRecords:
    """The records of one rank's rows of a table.

    Parameters
    ----------
    stored: [rows, parts, dim], contiguous, read and written in place.
    device: on which records are updated.
    """

    def __init__(self, stored: Tensor, device: torch.device) -> None:
        self.stored = stored
        self._device = device

    @property
    def rows(self) -> Tensor:
        """[rows, dim]: all rows, as they are stored; see :meth:`write_back`."""
        return self.stored[:, 0]

    @property
    def record_bytes(self) -> int:
        """Of a row and its state."""
        return self.stored.shape[1:].numel() * self.stored.element_size()

    def read(self, places: Tensor) -> Tensor:
        """[n, parts, dim], on the device: a copy of the records in [n] int64 distinct places."""
        return to_device(self.stored.index_select(0, places), self._device)

    def read_rows(self, places: Ids, out: Tensor) -> None:
        """Copy rows alone, in [n] int64 places, to [n, dim] on the device; no update follows."""
        if self.stored.device == out.device:
            gather_rows(self.stored, places, out)
        else:
            out.copy_(to_device(self.rows.index_select(0, torch.from_numpy(places)), out.device))

    def lend(self, places: Ids) -> LentRecords:
        """The records in [n] int64 distinct places, on the device, each read once for handing its
        row out and for its update. Nothing else may change them before :meth:`take_back`, which
        need not follow."""
        if self.stored.device.type == self._device.type == "cpu":
            return LentRecords(places, self.stored, in_table=True)
        return self._lend_copy(places)

    def take_back(self, lent: LentRecords) -> None:
        """Store records that were lent and updated."""
        if not lent.in_table:
            self.write(self._as_places(lent.places), lent.records)

    def _lend_copy(self, places: Ids) -> LentRecords:
        return LentRecords(places, self.read(self._as_places(places)), in_table=False)

    def _as_places(self, places: Ids) -> Tensor:
        return torch.from_numpy(places).to(self.stored.device)

    def write(self, places: Tensor, records: Tensor) -> None:
        """Store [n, parts, dim] records in [n] int64 distinct places."""
        self.stored.index_copy_(0, places, records.to(self.stored.device))

    def write_rows(self, places: Tensor, rows: Tensor) -> None:
        """Store [n, dim] rows alone in [n] int64 distinct places; see :meth:`read_again`."""
        self.stored[places.to(self.stored.device), 0] = rows.to(self.stored)

    def write_back(self) -> None:
        """Let ``stored`` be true."""

    def read_again(self) -> None:
        """Take note that ``stored`` was changed by others."""

    def take_lookups(self) -> Lookups | None:
        """Records that were looked for in memory since the last call; None where none is held."""
        return None


class HeldRecords(RowRecords):
    """Records of which some are in the device's memory, in a cache, and there alone.

    Parameters
    ----------
    stored: as of :class:`RowRecords`, in host memory or on disk.
    room: for how many.
    places: [n] int64 distinct, n at most ``room``: whose; None = those that were read last.
    """

    def __init__(
        self,
        stored: Tensor,
        device: torch.device,
        room: int,
        places: NDArray[np.int64] | None,
    ) -> None:
        super().__init__(stored, device)
        self._np = array_module(device.type)
        self._shape = stored.shape[1:]
        self._table = stored.view(len(stored), self._shape.numel())
        self._lookups = Lookups()
        made = (len(stored), room, self._shape.numel(), self._table[:0].numpy().dtype, self._np)
        if places is None:
            self._cache: RowCache = RecentRows(*made, evicted=self._put_back)
            return
        self._cache = RowCache(*made)
        wanted = np.sort(places)
        for first in range(0, wanted.size, _ROWS_AT_ONCE):
            part = wanted[first : first + _ROWS_AT_ONCE]
            self._cache.put(self._np.asarray(part), self._stored_at(part))

    def read(self, places: Tensor) -> Tensor:
        """See :class:`RowRecords`."""
        ids = self._np.asarray(places.numpy())
        out = self._np.empty((ids.size, self._shape.numel()), self._cache.dtype)
        found = look_up(self._cache, ids, out, self._np.arange(ids.size), self._fetch)
        self._lookups = self._lookups.plus(found)
        return torch.as_tensor(out, device=self._device).view(ids.size, *self._shape)

    def read_rows(self, places: Ids, out: Tensor) -> None:
        """See :class:`RowRecords`; what is held stays what it is."""
        slots = on_host(self._cache.find(self._np.asarray(places)))
        here, dim = torch.from_numpy(slots >= 0), self._shape[1]
        held = self._cache.rows[self._np.asarray(slots[slots >= 0])][:, :dim]
        out[here.to(self._device)] = torch.as_tensor(held, device=self._device)
        missing = self.rows.index_select(0, torch.from_numpy(places[slots < 0]))
        out[(~here).to(self._device)] = to_device(missing, self._device)

    def lend(self, places: Ids) -> LentRecords:
        """See :class:`RowRecords`."""
        return self._lend_copy(places)

    def write(self, places: Tensor, records: Tensor) -> None:
        """See :class:`RowRecords`."""
        ids = self._np.asarray(places.numpy())
        rows = self._np.asarray(records.view(len(records), self._shape.numel()))
        slots = self._cache.find(ids)
        here = slots >= 0
        self._cache.change(slots[here], rows, self._np.flatnonzero(here))
        missing = ~here
        found = torch.from_numpy(on_host(rows[missing]))
        self._table.index_copy_(0, torch.from_numpy(on_host(ids[missing])), found)

    def write_back(self) -> None:
        """See :class:`RowRecords`."""
        self._put_back(self._cache.held, self._cache.rows)

    def read_again(self) -> None:
        """See :class:`RowRecords`."""
        held, rows = self._cache.held, self._cache.rows
        for first in range(0, len(held), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            rows[part] = self._stored_at(on_host(held[part]))

    def take_lookups(self) -> Lookups | None:
        """See :class:`RowRecords`."""
        taken, self._lookups = self._lookups, Lookups()
        return taken

    def _stored_at(self, ids: NDArray[np.int64]) -> Array:
        found = self._table.index_select(0, torch.from_numpy(ids))
        return self._np.asarray(to_device(found, self._device))

    def _fetch(self, ids: Array, out: Array, places: Array) -> None:
        out[places] = self._stored_at(on_host(ids))

    def _put_back(self, ids: Array, records: Array) -> None:
        # In order, as a disk likes it.
        order = self._np.argsort(ids)
        for first in range(0, len(order), _ROWS_AT_ONCE):
            part = order[first : first + _ROWS_AT_ONCE]
            found = torch.from_numpy(on_host(records[part]))
            self._table.index_copy_(0, torch.from_numpy(on_host(ids[part])), found)
