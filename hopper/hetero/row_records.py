"""Learnable rows beside their optimiser's state: a record a node.

An update reads and writes a row and its state together, so they lie together: [rows, parts, dim],
of which the first part is the row. Where records are on disk some of them can be held in memory,
for reading and for writing: such a record has no other place until it is written back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.features.cached import Lookups, look_up
from hopper.features.copy_rows import copy_rows
from hopper.hetero.row_cache import RecentRows, RowCache

_ROWS_AT_ONCE: Final = 1 << 16


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


class RowRecords:
    """The records of one rank's rows of a table.

    Parameters
    ----------
    stored: [rows, parts, dim], contiguous, read and written in place.
    """

    def __init__(self, stored: Tensor) -> None:
        self.stored = stored

    @property
    def rows(self) -> Tensor:
        """[rows, dim]: all rows, as they are stored; see :meth:`write_back`."""
        return self.stored[:, 0]

    @property
    def record_bytes(self) -> int:
        """Of a row and its state."""
        return self.stored.shape[1:].numel() * self.stored.element_size()

    def read(self, places: Tensor) -> Tensor:
        """[n, parts, dim]: a copy of the records in [n] int64 distinct places."""
        return self.stored.index_select(0, places)

    def read_rows(self, places: Tensor) -> Tensor:
        """[n, dim]: a copy of rows alone, in any places; no update will follow."""
        return self.rows.index_select(0, places)

    def write(self, places: Tensor, records: Tensor) -> None:
        """Store [n, parts, dim] records in [n] int64 distinct places."""
        self.stored.index_copy_(0, places, records)

    def write_back(self) -> None:
        """Let ``stored`` be true."""

    def read_again(self) -> None:
        """Take note that ``stored`` was changed by others."""

    def take_lookups(self) -> Lookups | None:
        """Records that were looked for in memory since the last call; None where none is held."""
        return None


class HeldRecords(RowRecords):
    """Records of which some are in memory, in a cache, and there alone.

    Parameters
    ----------
    stored: as of :class:`RowRecords`, on the CPU.
    room: for how many.
    places: [n] int64 distinct, n at most ``room``: whose; None = those that were read last.
    """

    def __init__(self, stored: Tensor, room: int, places: NDArray[np.int64] | None) -> None:
        super().__init__(stored)
        self._shape = stored.shape[1:]
        self._table = stored.view(len(stored), self._shape.numel())
        self._lookups = Lookups()
        width, dtype = self._shape.numel(), self._table[:0].numpy().dtype
        if places is None:
            self._cache: RowCache = RecentRows(
                len(stored), room, width, dtype, evicted=self._put_back
            )
            return
        self._cache = RowCache(len(stored), room, width, dtype)
        wanted = np.sort(places)
        for first in range(0, wanted.size, _ROWS_AT_ONCE):
            part = wanted[first : first + _ROWS_AT_ONCE]
            self._cache.put(part, self._stored_at(part))

    def read(self, places: Tensor) -> Tensor:
        """See :class:`RowRecords`."""
        ids = places.numpy()
        out = np.empty((ids.size, self._shape.numel()), self._cache.dtype)
        found = look_up(self._cache, ids, out, np.arange(ids.size), self._fetch)
        self._lookups = self._lookups.plus(found)
        return torch.from_numpy(out).view(ids.size, *self._shape)

    def read_rows(self, places: Tensor) -> Tensor:
        """See :class:`RowRecords`; what is held stays what it is."""
        ids, dim = places.numpy(), self._shape[1]
        slots = self._cache.find(ids)
        here = slots >= 0
        out = torch.empty(ids.size, dim, dtype=self.stored.dtype)
        held = torch.from_numpy(self._cache.rows[slots[here], :dim])
        out[torch.from_numpy(here)] = held
        out[torch.from_numpy(~here)] = self.rows.index_select(0, torch.from_numpy(ids[~here]))
        return out

    def write(self, places: Tensor, records: Tensor) -> None:
        """See :class:`RowRecords`."""
        ids, rows = places.numpy(), records.view(len(records), self._shape.numel())
        slots = self._cache.find(ids)
        here = slots >= 0
        copy_rows(rows.numpy(), np.flatnonzero(here), self._cache.rows, slots[here])
        gaps = torch.from_numpy(np.flatnonzero(~here))
        self._table.index_copy_(0, places[gaps], rows[gaps])

    def write_back(self) -> None:
        """See :class:`RowRecords`."""
        self._put_back(self._cache.held, self._cache.rows)

    def read_again(self) -> None:
        """See :class:`RowRecords`."""
        self._cache.rows[:] = self._stored_at(self._cache.held)

    def take_lookups(self) -> Lookups | None:
        """See :class:`RowRecords`."""
        taken, self._lookups = self._lookups, Lookups()
        return taken

    def _stored_at(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        return self._table.index_select(0, torch.from_numpy(ids)).numpy()

    def _fetch(self, ids: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> None:
        out[places] = self._stored_at(ids)

    def _put_back(self, ids: NDArray[np.int64], records: NDArray[Any]) -> None:
        # In order, as a disk likes it.
        order = np.argsort(ids)
        found = torch.from_numpy(records[order])
        self._table.index_copy_(0, torch.from_numpy(ids[order]), found)
