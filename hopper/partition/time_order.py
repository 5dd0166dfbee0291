"""Sort neighbour lists by the times from which their edges may be seen."""

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
    seen: [edges of the destinations in [``first``, ``last``)] int64, times of the edges.
    times: [edges] int64, receives the sorted times.
    by_time: [edges] int64, receives the position of the edge that each time belongs to.
    """
    begin = indptr[first]
    for node in range(first, last):
        start, stop = indptr[node], indptr[node + 1]
        list_times = seen[start - begin : stop - begin]
        order = np.argsort(list_times, kind="mergesort")
        for rank in range(stop - start):
            times[start + rank] = list_times[order[rank]]
            by_time[start + rank] = order[rank]
