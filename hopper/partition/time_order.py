"""Neighbour lists by time: from when on each edge may be seen, earliest first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel

Ids = NDArray[np.int64]


@kernel
def order_by_time(seen: Ids, indptr: Ids, first: int, last: int, times: Ids, by_time: Ids) -> None:
    """Sort the neighbour lists of some destinations by time, ties by position.

    Parameters
    ----------
    seen: [edges of the destinations from ``first`` to ``last``] int64. times, by_time: [edges],
        written.
    """
    begin = indptr[first]
    for node in range(first, last):
        start, stop = indptr[node], indptr[node + 1]
        own = seen[start - begin : stop - begin]
        order = np.argsort(own, kind="mergesort")
        for place in range(stop - start):
            times[start + place] = own[order[place]]
            by_time[start + place] = order[place]
