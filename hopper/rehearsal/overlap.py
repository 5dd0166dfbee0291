"""Iterations that lie side by side: threads that share their server's cores, and ranks that wait
for each other.

Each rank has a thread that plans, one that reads and one that trains (docs/pipeline.md), or one for
all three where nothing is prepared ahead. A thread works on a core or waits for a link. Where more
work than a server has cores, each is the slower for it, as under a fair scheduler. Training of an
iteration begins when all ranks have trained the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.train.iteration_cost import PHASES, Spent

_ITERATIONS: Final = 24
"""that are followed; the second half is what counts, since the first fills what waits between
threads"""
_PIECES: Final = 3
"""of a phase: each works, then waits"""
_AHEAD: Final = 3
"""plans, and iterations that are read, that may wait: more change nothing once they are there"""
_MOST_RANKS: Final = 32
"""that are followed; of more, those of the first servers"""

Costs = Mapping[str, Spent]
"""one rank's phases of an iteration"""


class Cores(NamedTuple):
    """A server's.

    Attributes
    ----------
    number: how many; less than one is a share of one.
    of_a_thread: those that a thread at work keeps busy, on average.
    ranks: of the server.
    """

    number: float
    of_a_thread: float
    ranks: int


def overlapped_seconds(ranks: Sequence[Costs], cores: Cores, *, is_pipelined: bool) -> float:
    """Seconds from an iteration's end to the next one's, all of them alike.

    Parameters
    ----------
    ranks: in the order of their servers.
    is_pipelined: whether planning and reading run beside training.
    """
    followed = ranks[: max(cores.ranks, _MOST_RANKS // cores.ranks * cores.ranks)]
    ends = _Threads(followed, cores, is_pipelined).run()
    half = len(ends) // 2
    return (ends[-1] - ends[half - 1]) / (len(ends) - half)


class _Threads:
    """All threads of all ranks; arrays are [ranks, threads]."""

    def __init__(self, ranks: Sequence[Costs], cores: Cores, is_pipelined: bool) -> None:
        work = np.array([[rank[each].busy for each in PHASES] for rank in ranks])
        whole = np.array([[rank[each].seconds for each in PHASES] for rank in ranks])
        wait = np.maximum(whole - work, 0.0)
        if not is_pipelined:
            work, wait = work.sum(1, keepdims=True), wait.sum(1, keepdims=True)
        self._work, self._wait = work / _PIECES, wait / _PIECES
        self._cores = cores
        self._server = np.arange(len(ranks)) // cores.ranks
        self._done: NDArray[Any] = np.zeros(work.shape, int)
        """iterations"""
        self._pieces = np.zeros(work.shape, int)
        """of the one under way that are left; 0 = the thread is idle"""
        self._to_work = np.zeros(work.shape)
        self._to_wait = np.zeros(work.shape)

    def run(self) -> list[float]:
        """When each iteration was trained by all ranks."""
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
        """Let idle threads take the next iteration, where it is there and has room."""
        done, threads = self._done, self._done.shape[1]
        trained_by_all = done[:, -1].min()
        for place in range(threads):
            may = self._pieces[:, place] == 0
            if place:
                may &= done[:, place] < done[:, place - 1]
            if place < threads - 1:
                may &= done[:, place] < done[:, place + 1] + _AHEAD
            else:
                may &= done[:, place] == trained_by_all
            self._pieces[may, place] = _PIECES
            self._to_work[may, place] = self._work[may, place]
            self._to_wait[may, place] = self._wait[may, place]

    def _rates(self, works: NDArray[np.bool_]) -> NDArray[Any]:
        """Of each thread: a share of its server's cores."""
        at_work = np.bincount(self._server, weights=works.sum(1))
        asked = np.maximum(at_work * self._cores.of_a_thread, 1e-12)
        # However many cores are idle, a thread at work is no faster than it was alone.
        shares = np.minimum(1.0, self._cores.number / asked)[self._server]
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
