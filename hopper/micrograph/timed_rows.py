"""The numba kernels of sampling in time: draw what is not later, then name what was found."""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb, draw_positions, mix

Ids = NDArray[np.int64]
_FREE: Final = -1
_SLOTS_A_ROW: Final = 2


class TimedRows:
    """Rows of a frontier: distinct pairs of a node and a time, in order of discovery.

    Attributes
    ----------
    ids, times: [rows] int64.
    """

    def __init__(self) -> None:
        self.ids = np.empty(0, np.int64)
        self.times = np.empty(0, np.int64)
        self._slots = np.full(1, _FREE, np.int64)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self.ids.size)

    def enter(self, ids: Ids, times: Ids) -> Ids:
        """[n] int64: the rows of pairs, those that are new behind the others.

        Parameters
        ----------
        ids, times: [n] int64.
        """
        most = self.count + ids.size
        known = self.count
        all_ids, all_times = np.empty(most, np.int64), np.empty(most, np.int64)
        all_ids[:known], all_times[:known] = self.ids, self.times
        if self._slots.size < _SLOTS_A_ROW * most:
            size = 1 << int(2 * _SLOTS_A_ROW * most).bit_length()
            self._slots = np.full(size, _FREE, np.int64)
            _discover(self.ids, self.times, all_ids, all_times, 0, self._slots)
        rows, found = _discover(ids, times, all_ids, all_times, known, self._slots)
        self.ids, self.times = all_ids[:found].copy(), all_times[:found].copy()
        return rows


@numba.njit(cache=True, nogil=True)
def _discover(
    ids: Ids, times: Ids, all_ids: Ids, all_times: Ids, known: int, slots: Ids
) -> tuple[Ids, int]:
    """Rows of pairs, and how many there are then.

    Parameters
    ----------
    all_ids, all_times: the pairs of the first ``known`` rows; those that are new are added.
    slots: [2^k], rows by a hash of their pairs, at most half of them taken; updated.
    """
    rows = np.empty(ids.size, np.int64)
    mask = np.uint64(slots.size - 1)
    for i in range(ids.size):
        key = mix(np.uint64(ids[i]) ^ mix(np.uint64(times[i])))
        slot = np.int64(key & mask)
        while True:
            row = slots[slot]
            if row == _FREE:
                row = known
                slots[slot] = row
                all_ids[row], all_times[row] = ids[i], times[i]
                known += 1
                break
            if all_ids[row] == ids[i] and all_times[row] == times[i]:
                break
            slot = np.int64((np.uint64(slot) + np.uint64(1)) & mask)
        rows[i] = row
    return rows, known


@numba.njit(cache=True, nogil=True, parallel=True)
def draw_until(
    indptr: Ids,
    indices: Ids,
    times: Ids,
    by_time: Ids,
    original_ids: Ids,
    frontier: Ids,
    until: Ids,
    fanout: int,
    recent: bool,
    key: np.uint64,
) -> tuple[Ids, Ids, Ids, Ids]:
    """Draw neighbours that are there at a time (docs/draws.md, "Draws in time").

    Parameters
    ----------
    indptr, indices, times, by_time: of the relation's topology; the latter two may be empty, where
        edges are there always.
    original_ids: [destinations] int64, original id of every destination.
    frontier, until: [n] int64, destinations to expand, and their roots' times.
    fanout: neighbours a destination, -1 = all. recent: whether the latest are taken.
    key: key of (seed, epoch, iteration, hop, relation).

    Returns
    -------
    [n + 1] int64 offsets, [edges] int64 source ids and positions in the destination's neighbour
    list, and [n] int64 numbers of in-edges that are there.
    """
    size = frontier.size
    offsets = np.zeros(size + 1, np.int64)
    seen = np.empty(size, np.int64)
    for i in numba.prange(size):
        first, last = indptr[frontier[i]], indptr[frontier[i] + 1]
        if times.size:
            seen[i] = np.searchsorted(times[first:last], until[i], side="right")
        else:
            seen[i] = last - first
        offsets[i + 1] = seen[i] if fanout < 0 else min(seen[i], fanout)
    for i in range(size):
        offsets[i + 1] += offsets[i]
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        start, stop, first = offsets[i], offsets[i + 1], indptr[frontier[i]]
        if recent and times.size:
            for j in range(start, stop):
                positions[j] = seen[i] - 1 - (j - start)
        else:
            own = absorb(absorb(key, np.uint64(original_ids[frontier[i]])), np.uint64(until[i]))
            draw_positions(own, seen[i], stop - start, positions[start:stop])
        for j in range(start, stop):
            if times.size:
                positions[j] = by_time[first + positions[j]]
            sources[j] = indices[first + positions[j]]
    return offsets, sources, positions, seen
