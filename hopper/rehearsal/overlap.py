"""Simulates overlapping iterations: threads that share cores, and ranks that wait for each other.

Each rank has a thread that plans, one that reads and one that trains (docs/inside/pipeline.md), or
a single thread if there is no pipeline. A thread works on a core or waits for a link. If more
threads work than a server has cores, all get slower, as under a fair scheduler. Training of an
iteration begins when all ranks have trained the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.train.iteration_cost import PHASES, Spent

_ITERATIONS: Final = 24
"""iterations that are simulated; the first half fills the queues, the second half counts"""
_PIECES: Final = 3
"""pieces of a phase, in each of which a thread first works and then waits"""
_AHEAD: Final = 3
"""most plans, and most iterations with rows, that wait; more would not change the result"""
_MOST_RANKS: Final = 32
"""most ranks that are simulated; of more, those of the first servers"""

Costs = Mapping[str, Spent]
"""one rank's phases of an iteration"""


class Cores(NamedTuple):
    """The cores of a server.

    Attributes
    ----------
    number: how many; may be less than 1.
    of_a_thread: cores that a working thread keeps busy on average.
    ranks: ranks of the server.
    """

    number: float
    of_a_thread: float
    ranks: int


def overlapped_seconds(ranks: Sequence[Costs], cores: Cores, *, is_pipelined: bool) -> float:
    """Return the seconds between the ends of successive iterations that all cost the same.

    Parameters
    ----------
    ranks: costs of all ranks, in the order of their servers.
    is_pipelined: whether planning and reading run at the same time as training.
    """
    simulated = ranks[: max(cores.ranks, _MOST_RANKS // cores.ranks * cores.ranks)]
    ends = _Threads(simulated, cores, is_pipelined).run()
    half = len(ends) // 2
    return (ends[-1] - ends[half - 1]) / (len(ends) - half)


class _Threads:
    """The state of all ranks' threads; arrays are [ranks, threads]."""

    def __init__(self, ranks: Sequence[Costs], cores: Cores, is_pipelined: bool) -> None:
        work = np.array([[rank[phase].busy for phase in PHASES] for rank in ranks])
        total = np.array([[rank[phase].seconds for phase in PHASES] for rank in ranks])
        wait = np.maximum(total - work, 0.0)
        if not is_pipelined:
            work, wait = work.sum(1, keepdims=True), wait.sum(1, keepdims=True)
        self._work, self._wait = work / _PIECES, wait / _PIECES
        self._cores = cores
        self._server = np.arange(len(ranks)) // cores.ranks
        self._done: NDArray[Any] = np.zeros(work.shape, int)
        """iterations that each thread has finished"""
        self._pieces = np.zeros(work.shape, int)
        """pieces of the current iteration that are left; 0 = the thread is idle"""
        self._to_work = np.zeros(work.shape)
        self._to_wait = np.zeros(work.shape)

    def run(self) -> list[float]:
        """Simulate, and return the time at which all ranks had trained each iteration."""
        now, ends = 0.0, list[float]()
        while len(ends) < _ITERATIONS:
            self._begin()
            works = self._to_work > 0
            rates = self._rates(works)
            left = np.where(works, self._to_work / rates, self._to_wait)
            busy = self._pieces > 0
            step = float(left[busy].min())
            now += step
            self._advance(step, works, rates, busy)
            trained = int(self._done[:, -1].min())
            ends += [now] * (trained - len(ends))
        return ends

    def _begin(self) -> None:
        """Let idle threads begin an iteration that is ready and has room in the next queue."""
        done, threads = self._done, self._done.shape[1]
        trained_by_all = done[:, -1].min()
        for thread in range(threads):
            may_begin = self._pieces[:, thread] == 0
            if thread:
                may_begin &= done[:, thread] < done[:, thread - 1]
            if thread < threads - 1:
                may_begin &= done[:, thread] < done[:, thread + 1] + _AHEAD
            else:
                may_begin &= done[:, thread] == trained_by_all
            self._pieces[may_begin, thread] = _PIECES
            self._to_work[may_begin, thread] = self._work[may_begin, thread]
            self._to_wait[may_begin, thread] = self._wait[may_begin, thread]

    def _rates(self, works: NDArray[np.bool_]) -> NDArray[Any]:
        """Return each thread's speed, relative to a server with free cores."""
        working = np.bincount(self._server, weights=works.sum(1))
        cores_needed = np.maximum(working * self._cores.of_a_thread, 1e-12)
        # Idle cores make a working thread no faster.
        shares = np.minimum(1.0, self._cores.number / cores_needed)[self._server]
        return np.broadcast_to(shares[:, None], works.shape)

    def _advance(
        self, step: float, works: NDArray[np.bool_], rates: NDArray[Any], busy: NDArray[np.bool_]
    ) -> None:
        self._to_work[works] -= step * rates[works]
        waits = busy & ~works
        self._to_wait[waits] -= step
        self._to_work[self._to_work < 1e-12] = 0.0
        self._to_wait[self._to_wait < 1e-12] = 0.0
        ended = busy & (self._to_work == 0) & (self._to_wait == 0)
        self._pieces[ended] -= 1
        more = ended & (self._pieces > 0)
        self._to_work[more], self._to_wait[more] = self._work[more], self._wait[more]
        self._done[ended & (self._pieces == 0)] += 1
