"""Caches of rows of some nodes, which are looked up by id.

The same code works in host memory with NumPy and in device memory with CuPy, because it uses only
what both modules have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.device.array_module import Array
from hopper.features.copy_rows import copy_rows
from hopper.graph.topology import Ids


class RowCache:
    """A fixed set of rows of one type.

    A map finds a row by its id. It takes four bytes for each node of the type.

    Parameters
    ----------
    nodes: the number of nodes of the type, over all servers.
    room: the number of rows that the cache has room for; may be 0.
    dim, dtype: the width and the dtype of a row.
    """

    evicts = False

    def __init__(
        self, nodes: int, room: int, dim: int, dtype: Any, module: ModuleType = np
    ) -> None:
        self._np = module
        self._room = room
        self._used = 0
        self._slot_of = module.full(nodes, -1, np.int32)
        self._id_in = module.full(room, -1, np.int64)
        self._rows = module.empty((room, dim), dtype)

    @property
    def dim(self) -> int:
        """The width of a row."""
        return int(self._rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row."""
        return np.dtype(self._rows.dtype)

    @property
    def cached_ids(self) -> Array:
        """The ids [n], int64, whose rows are cached."""
        return self._id_in[: self._used]

    @property
    def rows(self) -> Array:
        """The cached rows [n, dim], in the order of :attr:`cached_ids`. May be changed."""
        return self._rows[: self._used]

    def find(self, ids: Array) -> Array:
        """Return the slot [n], int32, of the row of each id [n], int64; -1 = not cached."""
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self._slot_of)):
            # The source of the missing rows reports ids that are out of range.
            return self._np.full(len(ids), -1, np.int32)
        return self._slot_of[ids]

    def copy(self, slots: Array, out: Array, places: Array) -> None:
        """Copy rows from ``slots`` [n], which are occupied, to ``out[places]``.

        ``out`` is [rows, dim], C-contiguous, of the cache's dtype. Places are [n] int64, distinct.
        """
        if self._np is np:
            copy_rows(self._rows, slots, out, places)
        else:
            out[places] = self._rows[slots]

    def change(self, slots: Array, rows: Array, places: Array) -> None:
        """Overwrite the rows in ``slots`` [n], which are occupied and distinct, with
        ``rows[places]``.

        ``rows`` is [m, dim], C-contiguous, of the cache's dtype. Places are [n] int64.
        """
        if self._np is np:
            copy_rows(rows, places, self._rows, slots)
        else:
            self._rows[slots] = rows[places]

    def put(self, ids: Array, rows: Array) -> None:
        """Add rows [n, dim] of distinct ids [n], int64, that are not cached yet; a ValueError tells
        that there is not enough room."""
        first, last = self._used, self._used + len(ids)
        if last > self._room:
            raise ValueError(f"room for {self._room - first} more rows, given {len(ids)}")
        self._place(self._np.arange(first, last), ids, rows)
        self._used = last

    def take_missed(self, ids: Array, table: Array, places: Array) -> None:
        """Report ids [n], int64, that :meth:`find` missed, and whose rows are ``table[places]``.

        A fixed set of rows ignores them.
        """

    def _place(self, slots: Array, ids: Array, rows: Array) -> None:
        self._id_in[slots] = ids
        self._slot_of[ids] = slots
        self._rows[slots] = rows


class RecentRows(RowCache):
    """A cache that keeps the rows that were read last, and evicts the least recently used ones.

    ``evicted`` is called with the ids [n], int64, and the rows [n, dim] before they are evicted;
    None = rows are only copies, and may be dropped.
    """

    evicts = True

    def __init__(
        self,
        nodes: int,
        room: int,
        dim: int,
        dtype: Any,
        module: ModuleType = np,
        evicted: Callable[[Array, Array], None] | None = None,
    ) -> None:
        super().__init__(nodes, room, dim, dtype, module)
        self._evicted = evicted
        self._asked_at = module.zeros(room, np.int64)
        self._moment = 0

    def copy(self, slots: Array, out: Array, places: Array) -> None:
        """Copy rows as :class:`RowCache` does, and mark them as just used."""
        self._moment += 1
        self._asked_at[slots] = self._moment
        super().copy(slots, out, places)

    def take_missed(self, ids: Array, table: Array, places: Array) -> None:
        """Cache missed rows, or as many of them as there is room for."""
        ids, first = self._np.unique(ids, return_index=True)
        ids, places = ids[: self._room], places[first][: self._room]
        rows = table[places]
        free = min(len(ids), self._room - self._used)
        if free:
            self.put(ids[:free], rows[:free])
            self._asked_at[self._used - free : self._used] = self._moment
        ids, rows = ids[free:], rows[free:]
        if len(ids):
            # Ties are broken by slot, so that a repeated run evicts the same rows.
            ages = self._asked_at * self._room + self._np.arange(self._room)
            oldest = self._np.sort(self._np.argpartition(ages, len(ids) - 1)[: len(ids)])
            if self._evicted is not None:
                self._evicted(self._id_in[oldest], self._rows[oldest])
            self._slot_of[self._id_in[oldest]] = -1
            self._place(oldest, ids, rows)
            self._asked_at[oldest] = self._moment


class ReadyRows(RowCache):
    """The rows of one iteration that were read before it.

    Parameters
    ----------
    ids: [n] int64, ascending.
    rows: [n, dim].
    saved: how many rows of other servers earlier iterations have read as well.
    """

    evicts = True

    def __init__(self, ids: Ids, rows: NDArray[Any], saved: int) -> None:
        self._np, self._ids, self._rows, self.saved = np, ids, rows, saved

    def find(self, ids: Array) -> Array:
        """Return the slot [n], int64, of each id; -1 = not read."""
        slots = np.searchsorted(self._ids, ids)
        is_here = np.take(self._ids, slots, mode="clip") == ids if self._ids.size else ids < 0
        return np.where(is_here, slots, -1)
