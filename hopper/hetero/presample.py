"""Counts how often rows are read, by sampling before training (Heta, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from hopper.graph.topology import Ids

FIRST_EPOCH: Final = 1 << 31
"""The first epoch of presampling, which no training reaches, so that its draws differ."""
_TIMES: Final = 3


class Visited(NamedTuple):
    """The rows that were read, ascending, and the number of iterations that read each."""

    ids: Ids
    visits: Ids


class VisitCounter:
    """Counts in how many iterations each row is read, by stored node type, of which ``counts`` are
    the numbers of nodes; it takes four bytes a node."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._visits = {name: np.zeros(count, np.int32) for name, count in counts.items()}
        self.iterations = 0

    def add(self, read: Mapping[str, Ids]) -> None:
        """Count the rows of one iteration, given as distinct global ids [n], int64, by type."""
        self.iterations += 1
        for name, ids in read.items():
            self._visits[name][ids] += 1

    def list_visited(self, node_type: str) -> Visited:
        """Return the rows of a type that were read, with their counts."""
        ids = np.flatnonzero(self._visits[node_type])
        return Visited(ids, self._visits[node_type][ids].astype(np.int64))


def miss_penalty(
    fetch: Callable[[Ids], object], visited: Visited, iterations: int, row_bytes: int
) -> float:
    """Measure the seconds that a missing byte costs, by ``fetch``, which reads rows of ids.

    It fetches as many of the visited rows as an iteration reads, once to warm up and three times to
    measure, and takes the median. If there are enough rows, each fetch reads different ones,
    because the page cache may still hold those of the last fetch. The fixed cost of a request is
    part of the penalty. It weighs most for types of which an iteration reads few rows.
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
        start = perf_counter()
        fetch(ids)
        seconds.append(perf_counter() - start)
    return float(np.median(seconds[1:])) / (count * row_bytes)
