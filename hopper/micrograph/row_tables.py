"""Which row each node has in a frontier."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import mix
from cache_server.kernel import kernel
from hopper.micrograph.frontier import UNSEEN, discover, forget

Ids = NDArray[np.int64]
_SLOTS_A_ROW: Final = 2
_FEWEST_SLOTS: Final = 1024


class RowTable(Protocol):
    """Rows of the nodes of a type, or of their versions
    (:meth:`hopper.micrograph.sample.NeighborSampler.versions`), all unseen at first."""

    def discover(self, found: Ids, known: int) -> tuple[Ids, Ids]:
        """[n] int64 rows, and [new] int64: those that had none, in order of first appearance; the
        i-th has row ``known + i`` from now on.

        Parameters
        ----------
        found: [n] int64. known: number of rows in use.
        """

    def rows(self, known: Ids) -> Ids:
        """[n] int64: the rows of those that were discovered."""

    def clear(self, known: Ids) -> None:
        """Let all be unseen, which these are that were not."""


class DenseTable:
    """A :class:`RowTable` of ids below ``count``: a place for each."""

    def __init__(self, count: int) -> None:
        self._rows = np.full(count, UNSEEN, np.int32)

    def discover(self, found: Ids, known: int) -> tuple[Ids, Ids]:
        """See :class:`RowTable`."""
        rows, fresh = discover(found, self._rows, known)
        return rows, fresh

    def rows(self, known: Ids) -> Ids:
        """See :class:`RowTable`."""
        return self._rows[known].astype(np.int64)

    def clear(self, known: Ids) -> None:
        """See :class:`RowTable`."""
        forget(known, self._rows)


class HashTable:
    """A :class:`RowTable` of any int64, with places for those alone that were discovered."""

    def __init__(self) -> None:
        self._keys = np.empty(_FEWEST_SLOTS, np.int64)
        self._rows = np.full(_FEWEST_SLOTS, UNSEEN, np.int64)
        self._size = 0

    def discover(self, found: Ids, known: int) -> tuple[Ids, Ids]:
        """See :class:`RowTable`."""
        most = _SLOTS_A_ROW * (self._size + found.size)
        if most > self._rows.size:
            slots = 1 << int(most - 1).bit_length()
            keys, rows = np.empty(slots, np.int64), np.full(slots, UNSEEN, np.int64)
            _move(self._keys, self._rows, keys, rows)
            self._keys, self._rows = keys, rows
        own, fresh = _discover(found, self._keys, self._rows, known)
        self._size += fresh.size
        return own, fresh

    def rows(self, known: Ids) -> Ids:
        """See :class:`RowTable`."""
        found: Ids = _look_up(known, self._keys, self._rows)
        return found

    def clear(self, known: Ids) -> None:
        """See :class:`RowTable`."""
        if self._size:
            self._rows.fill(UNSEEN)
            self._size = 0


@kernel(inline="always")
def _slot(key: np.int64, keys: Ids, rows: Ids) -> np.int64:
    """Where a key is, or would be entered; at most half of all slots are taken."""
    mask = np.uint64(rows.size - 1)
    slot = mix(np.uint64(key)) & mask
    while rows[slot] != UNSEEN and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@kernel
def _discover(found: Ids, keys: Ids, rows: Ids, known: int) -> tuple[Ids, Ids]:
    """See :meth:`RowTable.discover`."""
    own = np.empty(found.size, np.int64)
    fresh = np.empty(found.size, np.int64)
    new = 0
    for i in range(found.size):
        slot = _slot(found[i], keys, rows)
        if rows[slot] == UNSEEN:
            keys[slot], rows[slot] = found[i], known + new
            fresh[new] = found[i]
            new += 1
        own[i] = rows[slot]
    return own, fresh[:new].copy()


@kernel
def _look_up(known: Ids, keys: Ids, rows: Ids) -> Ids:
    """See :meth:`RowTable.rows`."""
    found = np.empty(known.size, np.int64)
    for i in range(known.size):
        found[i] = rows[_slot(known[i], keys, rows)]
    return found


@kernel
def _move(keys: Ids, rows: Ids, new_keys: Ids, new_rows: Ids) -> None:
    """Enter all that has a row into a larger table."""
    for i in range(rows.size):
        if rows[i] != UNSEEN:
            slot = _slot(keys[i], new_keys, new_rows)
            new_keys[slot], new_rows[slot] = keys[i], rows[i]
