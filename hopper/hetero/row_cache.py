"""Rows of some nodes, found by id: in host memory by NumPy, in device memory by CuPy.

The same code serves both; what it needs of an array module is what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from hopper.array_module import Array
from hopper.features.copy_rows import copy_rows


class RowCache:
    """A fixed set of rows of one type.

    A map of four bytes a node tells where a row is, whatever the number of rows.

    Parameters
    ----------
    nodes: of the type, over all servers. room: rows, 0 is ordinary.
    dim, dtype: of a row.
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
        """Of a row."""
        return int(self._rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a row."""
        return np.dtype(self._rows.dtype)

    @property
    def held(self) -> Array:
        """[n] int64: the ids that it has rows of."""
        return self._id_in[: self._used]

    @property
    def rows(self) -> Array:
        """[n, dim]: their rows, in the same order, to be changed in place."""
        return self._rows[: self._used]

    def find(self, ids: Array) -> Array:
        """[n] int32: where the rows of [n] int64 ids are; -1 = not here."""
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self._slot_of)):
            # Whoever is asked for such rows says what is wrong.
            return self._np.full(len(ids), -1, np.int32)
        return self._slot_of[ids]

    def copy(self, slots: Array, out: Array, places: Array) -> None:
        """``out[places]`` become the rows in [n] ``slots``, all of which hold one.

        Parameters
        ----------
        out: [rows, dim], C-contiguous, of the cache's dtype. places: [n] int64, distinct.
        """
        if self._np is np:
            copy_rows(self._rows, slots, out, places)
        else:
            out[places] = self._rows[slots]

    def change(self, slots: Array, rows: Array, places: Array) -> None:
        """The rows in [n] ``slots``, distinct ones that hold one, become ``rows[places]``.

        Parameters
        ----------
        rows: [m, dim], C-contiguous, of the cache's dtype. places: [n] int64.
        """
        if self._np is np:
            copy_rows(rows, places, self._rows, slots)
        else:
            self._rows[slots] = rows[places]

    def put(self, ids: Array, rows: Array) -> None:
        """Add [n, dim] rows of [n] int64 distinct ids that are not here yet.

        Raises
        ------
        ValueError: there is no room for as many.
        """
        first, last = self._used, self._used + len(ids)
        if last > self._room:
            raise ValueError(f"room for {self._room - first} more rows, given {len(ids)}")
        self._place(self._np.arange(first, last), ids, rows)
        self._used = last

    def missed(self, ids: Array, table: Array, places: Array) -> None:
        """Take note of [n] int64 ids whose rows were asked for, are not here, and now stand in
        ``table[places]``."""

    def _place(self, slots: Array, ids: Array, rows: Array) -> None:
        self._id_in[slots] = ids
        self._slot_of[ids] = slots
        self._rows[slots] = rows


class RecentRows(RowCache):
    """The rows that were asked for last: the least recently used ones make room.

    Parameters
    ----------
    evicted: is given the [n] int64 ids and [n, dim] rows of those that do; None = they are copies.
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
        """See :class:`RowCache`; these rows were asked for."""
        self._moment += 1
        self._asked_at[slots] = self._moment
        super().copy(slots, out, places)

    def missed(self, ids: Array, table: Array, places: Array) -> None:
        """See :class:`RowCache`: they are kept, or as many of them as there is room for."""
        ids, first = self._np.unique(ids, return_index=True)
        ids, places = ids[: self._room], places[first][: self._room]
        rows = table[places]
        free = min(len(ids), self._room - self._used)
        if free:
            self.put(ids[:free], rows[:free])
            self._asked_at[self._used - free : self._used] = self._moment
        ids, rows = ids[free:], rows[free:]
        if len(ids):
            # Ties by slot, so that a run evicts the same rows every time.
            ages = self._asked_at * self._room + self._np.arange(self._room)
            oldest = self._np.sort(self._np.argpartition(ages, len(ids) - 1)[: len(ids)])
            if self._evicted is not None:
                self._evicted(self._id_in[oldest], self._rows[oldest])
            self._slot_of[self._id_in[oldest]] = -1
            self._place(oldest, ids, rows)
            self._asked_at[oldest] = self._moment
