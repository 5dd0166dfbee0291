"""The search for the best number of dissolved time steps (HopGNN, section 5.3).

The paper compares the times of successive epochs. If the speed of the machine drifts, that mistakes
noise for a gain. So here two numbers are compared in alternating iterations of the same epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Final

MERGE: Final = "merge"
TRIED: Final = "merge_tried"
MARGIN: Final = 0.02
"""share of an iteration's time that one more dissolved step must save at least"""
LEAST_PAIRS: Final = 10
"""pairs after which a number may be accepted, or rejected because it looks no faster"""
MOST_PAIRS: Final = 64
"""most pairs in an epoch, and in a comparison"""
MOST_EPOCHS: Final = 10
"""most epochs of a comparison"""
FIRST_PAUSE: Final = 8
"""epochs from the end of a comparison to the first check of its result"""

_HALF: Final = 2
_QUANTILE: Final = 1.96
"""quantile of the normal distribution for an error of 2.5 % on one side"""


def number_of_steps(decisions: Mapping[str, int], epoch: int, iteration: int) -> int:
    """Return how many time steps an iteration dissolves.

    In an epoch that compares two numbers, a pair is two iterations with one number followed by two
    with the other. The first iteration belongs to no pair. Iterations after :data:`MOST_PAIRS`
    pairs do not either, and use the current number. Which number comes first alternates between
    pairs and between epochs, so that a drift of the machine's speed favours neither.

    Parameters
    ----------
    decisions: the epoch's result of :meth:`MergeNumber.decisions`.
    """
    current = decisions[MERGE]
    pair, index_in_pair = divmod(max(iteration - 1, 0), 2 * _HALF)
    if TRIED not in decisions or pair >= MOST_PAIRS:
        return current
    is_tried = (index_in_pair // _HALF + pair + epoch) % 2
    return decisions[TRIED] if is_tried else current


@dataclass(frozen=True)
class MergeNumber:
    """The current number of dissolved steps, and its next comparison with another number.

    An adaptive number starts at 0, and the first epoch is a warm-up. Then the current number is
    compared with one more, which replaces it if it is proven faster by :data:`MARGIN`. This repeats
    until a larger number is not proven faster. Later, after pauses that double, the current number
    is compared with one less, which replaces it unless the current number is proven faster.

    So the larger of two numbers always needs proof: the lower bound of a confidence interval of the
    pairs' relative differences must be above the margin. A comparison that is still open after
    :data:`MOST_PAIRS` pairs or :data:`MOST_EPOCHS` epochs is decided against the larger number.
    During a comparison half of the iterations use the slower number.

    The time of an iteration is the slowest rank's, from the end of the previous iteration to its
    own end. In a pipeline the rows of the next iteration are read meanwhile. An epoch that compares
    reads at most one iteration ahead, so the time covers computing one iteration and reading the
    next. It counts only if both have the same number of steps. The first iteration, which waits for
    its own rows, and the last, which reads none, do not count. Plans are made further ahead, but
    take about the same time for every number. One effect is not seen: which rows a cache keeps
    depends on what both numbers read.

    Instances are immutable, so a thread that plans ahead sees a consistent state.

    """

    most: int
    """the largest number to try, one less than the number of ranks"""
    number: int = 0
    """the current number"""
    lower: int = 0
    """the smaller of the two numbers of the next comparison"""
    start: int | None = None
    """the epoch of that comparison; None = there is none"""
    pause: int = 0
    """epochs between the last comparison and the next"""
    epochs: int = 0
    """how many whole epochs the comparison has taken so far"""
    differences: tuple[float, ...] = ()
    """by pair, how much less time the larger number took, over the mean of both times"""

    @classmethod
    def fixed(cls, number: int) -> MergeNumber:
        """Return a number that never changes."""
        return cls(number, number)

    @classmethod
    def adaptive(cls, most: int) -> MergeNumber:
        """Return the initial state of a search for the best number; ``most`` as of the class."""
        return cls(most, start=1 if most else None)

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> MergeNumber:
        """Make the object whose :meth:`state` was saved."""
        return cls(**{**state, "differences": tuple(state["differences"])})

    def state(self) -> dict[str, Any]:
        """Return all attributes as JSON."""
        return asdict(self)

    def knows(self, epoch: int) -> bool:
        """Return whether the number for a future epoch is known, so that it may be planned ahead.

        It is not known for an epoch that compares. Such an epoch begins with nothing read ahead.
        """
        return self.start is None or epoch < self.start

    def decisions(self, epoch: int) -> dict[str, int]:
        """Return an epoch's current number, and the number that is compared with it, if any."""
        numbers = {MERGE: self.number}
        if not self.knows(epoch):
            numbers[TRIED] = self.lower if self.lower < self.number else self.lower + 1
        return numbers

    def after(self, epoch: int, seconds: Mapping[int, float]) -> MergeNumber:
        """Return the state after an epoch.

        Parameters
        ----------
        seconds: by iteration, the slowest rank's time, equal on every rank. Iterations before a
            resumption are missing, and so are those after a checkpoint, whose times include it.
        """
        if self.knows(epoch):
            return self
        differences = (*self.differences, *self._differences(epoch, seconds))[:MOST_PAIRS]
        # The remainder of an epoch after a resumption does not count as an epoch.
        epochs = self.epochs + (0 in seconds)
        is_over = len(differences) == MOST_PAIRS or epochs >= MOST_EPOCHS
        # At this rate the comparison would end with too few pairs.
        is_over |= len(differences) * MOST_EPOCHS < LEAST_PAIRS * epochs
        verdict = _is_proven(differences, MARGIN if self._rises else 0.0)
        if verdict is None and not is_over:
            return replace(self, start=epoch + 1, epochs=epochs, differences=differences)
        return self._conclude(epoch, self.lower + bool(verdict))

    @property
    def _rises(self) -> bool:
        return self.lower == self.number

    def _conclude(self, epoch: int, number: int) -> MergeNumber:
        """Return the state after a comparison that ``number`` has won."""
        if self._rises and self.number < number < self.most:
            return MergeNumber(self.most, number, number, epoch + 1)
        if number == 0:
            return MergeNumber(self.most)
        pause = 2 * self.pause if self.pause and number == self.number else FIRST_PAUSE
        return MergeNumber(self.most, number, number - 1, epoch + 1 + pause, pause)

    def _differences(self, epoch: int, seconds: Mapping[int, float]) -> list[float]:
        """Return the relative differences of an epoch's pairs that have times of both numbers."""
        decisions = self.decisions(epoch)
        first, last = min(seconds, default=0), max(seconds, default=0)
        by_pair: dict[int, dict[int, list[float]]] = {}
        for iteration in seconds:
            pair = (iteration - 1) // (2 * _HALF)
            number = number_of_steps(decisions, epoch, iteration)
            next_number = number_of_steps(decisions, epoch, iteration + 1)
            if first < iteration < last and number == next_number and pair < MOST_PAIRS:
                by_pair.setdefault(pair, {}).setdefault(number, []).append(seconds[iteration])
        differences = []
        for times in by_pair.values():
            if len(times) == 2:
                low, high = fmean(times[self.lower]), fmean(times[self.lower + 1])
                differences.append(2 * (low - high) / (low + high))
        return differences


def _is_proven(differences: Sequence[float], least: float) -> bool | None:
    """Return whether the centre of differences is above ``least``; None = not decided yet.

    True needs the whole confidence interval above ``least``, and :data:`LEAST_PAIRS` differences at
    least. False needs the whole interval below it, or that many differences and the estimate below.

    The estimate is that of Hodges and Lehmann, the median of the means of all pairs of differences,
    with its confidence interval (Annals of Mathematical Statistics 34(2), 1963). Both are order
    statistics, so no single slow iteration decides. Fewer than six differences have no interval.
    """
    count = len(differences)
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    rank = math.floor(count * (count + 1) / 4 - 0.5 - _QUANTILE * spread)
    if rank < 0:
        return None
    means = sorted((a + b) / 2 for i, a in enumerate(differences) for b in differences[i:])
    if means[-1 - rank] <= least:
        return False
    if count < LEAST_PAIRS:
        return None
    if means[len(means) // 2] <= least:
        return False
    return True if means[rank] > least else None
