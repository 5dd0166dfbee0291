"""How often rows are read, counted by sampling before training (Heta, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

FIRST_EPOCH: Final = 1 << 31
"""of presampling: an epoch that no training has, so that its draws are others"""
_TIMES: Final = 3


class Visited(NamedTuple):
    """Rows that were read, ascending, and in how many iterations each was."""

    ids: Ids
    visits: Ids


class VisitCounter:
    """Counts, by node type as stored, in how many iterations a row is read.

    Parameters
    ----------
    counts: by type, its nodes; four bytes each are held.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._visits = {each: np.zeros(count, np.int32) for each, count in counts.items()}
        self.iterations = 0

    def add(self, read: Mapping[str, Ids]) -> None:
        """Count one iteration's rows: by type, [n] int64 distinct global ids."""
        self.iterations += 1
        for each, ids in read.items():
            self._visits[each][ids] += 1

    def visited(self, node_type: str) -> Visited:
        """What was read of a type."""
        ids = np.flatnonzero(self._visits[node_type])
        return Visited(ids, self._visits[node_type][ids].astype(np.int64))


def miss_penalty(
    fetch: Callable[[Ids], object], visited: Visited, iterations: int, row_bytes: int
) -> float:
    """Seconds that a missing byte costs: as many rows are fetched as an iteration reads, three
    times after a first one that is not counted; the median. Each time other rows, as far as there
    are enough of them: what was just read may be in a page cache.

    A type of which an iteration reads few rows pays much for each: what a request costs besides its
    rows is part of the penalty.

    Parameters
    ----------
    fetch: reads rows of [n] int64 ids from where missing ones come from.
    """
    if not visited.ids.size:
        return 0.0
    typical = max(1, round(int(visited.visits.sum()) / max(1, iterations)))
    count, times = min(typical, visited.ids.size), 1 + _TIMES
    firsts = np.linspace(0, visited.ids.size, count, endpoint=False)
    seconds = []
    for turn in range(times):
        shift = turn * visited.ids.size // (count * times)
        ids = visited.ids[firsts.astype(np.int64) + shift]
        began = perf_counter()
        fetch(ids)
        seconds.append(perf_counter() - began)
    return float(np.median(seconds[1:])) / (count * row_bytes)
