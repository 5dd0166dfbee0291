"""Find ids in an array by a table of the ids' leading bits and a short binary search.

A binary search of the whole array misses the processor's caches at most steps. The table has about
as many entries as there are ids, so only a few ids are left to search.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.device.kernel_threads import threads_for

Ids = NDArray[np.int64]


class Index:
    """Finds the indices of distinct ids in an array, which may have any order."""

    def __init__(self, ids: Ids) -> None:
        self._order = None if bool((ids[1:] > ids[:-1]).all()) else np.argsort(ids)
        self._ids = ids if self._order is None else ids[self._order]
        self._shift, self._starts = 0, np.zeros(1, np.int64)
        if ids.size:
            span = int(self._ids[-1]) - int(self._ids[0])
            self._shift = max((span // ids.size).bit_length() - 1, 0)
            self._starts = _first_indices(self._ids, self._shift)

    def find(self, wanted: Ids) -> Ids:
        """Return [m] int64: the indices of some ids in the array; an unknown one is an
        IndexError."""
        places = np.empty(wanted.size, np.int64)
        with threads_for(wanted.size):
            missing = _find(self._ids, self._starts, self._shift, wanted, places)
        if missing:
            raise IndexError(f"{missing} of {wanted.size} ids are not among {self._ids.size}")
        return places if self._order is None else self._order[places]


@kernel
def _first_indices(ids: Ids, shift: int) -> Ids:
    """Return the first indices where ``(id - first id) >> shift`` of ascending ids is at least 0,
    1, ..., and the number of ids."""
    first = ids[0]
    starts = np.empty(((ids[-1] - first) >> shift) + 2, np.int64)
    reached = 0
    for i in range(ids.size):
        value = (ids[i] - first) >> shift
        while reached <= value:
            starts[reached] = i
            reached += 1
    starts[reached] = ids.size
    return starts


@kernel(parallel=True)
def _find(ids: Ids, starts: Ids, shift: int, wanted: Ids, places: Ids) -> int:
    """Write the indices of ``wanted`` ids to ``places``; return the number of unknown ids."""
    missing = 0
    for i in numba.prange(wanted.size):
        place = -1
        if ids.size > 0 and ids[0] <= wanted[i] <= ids[-1]:
            value = (wanted[i] - ids[0]) >> shift
            low, high = starts[value], starts[value + 1]
            while low < high:
                middle = (low + high) >> 1
                if ids[middle] < wanted[i]:
                    low = middle + 1
                else:
                    high = middle
            if low < ids.size and ids[low] == wanted[i]:
                place = low
        places[i] = place
        missing += place < 0
    return missing
