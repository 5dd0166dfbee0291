"""How many time steps iterations dissolve (HopGNN, section 5.3).

The paper compares the times of whole epochs, one after the other. On a machine whose speed drifts
that takes noise for a gain, so here both numbers are tried within the same epoch, in turn.
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
"""what one more dissolved step has to save at least, as a share of an iteration's time"""
LEAST_PAIRS: Final = 10
"""before a number takes another's place, or is given up because it looks no faster"""
MOST_PAIRS: Final = 64
"""of an epoch, and of a comparison"""
MOST_EPOCHS: Final = 10
"""of a comparison"""
FIRST_PAUSE: Final = 8
"""epochs from the end of a comparison to a check of what it found"""

_HALF: Final = 2
_QUANTILE: Final = 1.96
"""of the normal distribution: an error of 2.5 % to one side"""


def number_of_steps(decisions: Mapping[str, int], epoch: int, iteration: int) -> int:
    """How many time steps an iteration dissolves, by the decisions for its epoch.

    An epoch that compares two numbers trains them in turn, in pairs of two iterations each. The
    first iteration belongs to no pair; nor does what follows :data:`MOST_PAIRS` pairs, which has
    the number that stands. Which number comes first changes from pair to pair and from epoch to
    epoch, so that a drift of the machine's speed favours neither.

    Parameters
    ----------
    decisions: as of :meth:`MergeNumber.decisions`.
    """
    standing = decisions[MERGE]
    pair, place = divmod(max(iteration - 1, 0), 2 * _HALF)
    if TRIED not in decisions or pair >= MOST_PAIRS:
        return standing
    is_tried = (place // _HALF + pair + epoch) % 2
    return decisions[TRIED] if is_tried else standing


@dataclass(frozen=True)
class MergeNumber:
    """The number that stands, and when it is compared with which other.

    An adaptive number starts with no dissolved step. The first epoch warms up. From then on, one
    step more is compared with the number that stands, and takes its place where it is proven faster
    by :data:`MARGIN`; the first that is not proven ends that. Later, after pauses that double, the
    number is compared with one step less, and goes back where it is not proven faster. So the
    larger of two numbers always has to prove itself: the lower bound of an interval of the
    pairs' relative differences has to be above the margin. A comparison that is not decided within
    :data:`MOST_PAIRS` pairs or :data:`MOST_EPOCHS` epochs is decided against the larger number.
    While two numbers are compared, half of the iterations have the slower one.

    An iteration's time is the slowest rank's, from the end of the iteration before to its own. In a
    pipeline the rows of the next iteration are read meanwhile. An epoch that compares reads no more
    than one iteration ahead, so the time is that of computing one iteration and reading the next:
    it counts where both have the same number of steps. The last iteration, which reads
    nothing, and the first, which waits for its own rows, do not count. Plans are made further
    ahead, but take about the same time for every number. What this cannot see: rows that a cache
    keeps are chosen by what both numbers read.

    Instances are never changed, so a thread that plans ahead sees one state or the next.

    Attributes
    ----------
    most: the largest number to try, one less than there are ranks.
    number: the number that stands.
    lower: the smaller of the two numbers that are compared next.
    start: the epoch that does so; None = none ever.
    pause: epochs that lay between the last comparison and the next.
    epochs: that this comparison has taken so far, from beginning to end.
    differences: of its pairs: how much less time the larger number took, over the mean of both.
    """

    most: int
    number: int = 0
    lower: int = 0
    start: int | None = None
    pause: int = 0
    epochs: int = 0
    differences: tuple[float, ...] = ()

    @classmethod
    def fixed(cls, number: int) -> MergeNumber:
        """A number that stays."""
        return cls(number, number)

    @classmethod
    def adaptive(cls, most: int) -> MergeNumber:
        """What a run starts with that looks for the number; ``most`` as of the class."""
        return cls(most, start=1 if most else None)

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> MergeNumber:
        """What :meth:`state` was taken of."""
        return cls(**{**state, "differences": tuple(state["differences"])})

    def state(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return asdict(self)

    def knows(self, epoch: int) -> bool:
        """Whether the decisions for an epoch that has not begun are known, and what runs ahead may
        run into it. An epoch that compares begins with nothing read ahead."""
        return self.start is None or epoch < self.start

    def decisions(self, epoch: int) -> dict[str, int]:
        """The number that stands in an epoch, and the number that is compared with it, if any."""
        found = {MERGE: self.number}
        if not self.knows(epoch):
            found[TRIED] = self.lower if self.lower < self.number else self.lower + 1
        return found

    def after(self, epoch: int, seconds: Mapping[int, float]) -> MergeNumber:
        """What follows from an epoch.

        Parameters
        ----------
        seconds: by iteration, the slowest rank's time, the same on every rank. A run that was
            resumed within the epoch lacks those before; of iterations that follow a checkpoint the
            times tell nothing, and they are missing too.
        """
        if self.knows(epoch):
            return self
        found = (*self.differences, *self._differences(epoch, seconds))[:MOST_PAIRS]
        # The part of an epoch that is left after a resumption is no epoch.
        epochs = self.epochs + (0 in seconds)
        is_over = len(found) == MOST_PAIRS or epochs >= MOST_EPOCHS
        # With as few pairs an epoch there will not be enough of them.
        is_over |= len(found) * MOST_EPOCHS < LEAST_PAIRS * epochs
        verdict = _is_proven(found, MARGIN if self._rises else 0.0)
        if verdict is None and not is_over:
            return replace(self, start=epoch + 1, epochs=epochs, differences=found)
        return self._concluded(epoch, self.lower + bool(verdict))

    @property
    def _rises(self) -> bool:
        return self.lower == self.number

    def _concluded(self, epoch: int, number: int) -> MergeNumber:
        if self._rises and self.number < number < self.most:
            return MergeNumber(self.most, number, number, epoch + 1)
        if number == 0:
            return MergeNumber(self.most)
        pause = 2 * self.pause if self.pause and number == self.number else FIRST_PAUSE
        return MergeNumber(self.most, number, number - 1, epoch + 1 + pause, pause)

    def _differences(self, epoch: int, seconds: Mapping[int, float]) -> list[float]:
        """Of the pairs of an epoch; a pair without a time of either number is left out."""
        decisions = self.decisions(epoch)
        first, last = min(seconds, default=0), max(seconds, default=0)
        by_pair: dict[int, dict[int, list[float]]] = {}
        for each in seconds:
            pair = (each - 1) // (2 * _HALF)
            number = number_of_steps(decisions, epoch, each)
            following = number_of_steps(decisions, epoch, each + 1)
            if first < each < last and number == following and pair < MOST_PAIRS:
                by_pair.setdefault(pair, {}).setdefault(number, []).append(seconds[each])
        found = []
        for times in by_pair.values():
            if len(times) == 2:
                low, high = fmean(times[self.lower]), fmean(times[self.lower + 1])
                found.append(2 * (low - high) / (low + high))
        return found


def _is_proven(differences: Sequence[float], least: float) -> bool | None:
    """Whether the centre of differences is above ``least``; None = that is open.

    It is not as soon as the whole interval is below, and of :data:`LEAST_PAIRS` or more also when
    the estimate alone is.

    The estimate is that of Hodges and Lehmann, the median of all means of two, and the interval the
    one that belongs to it (Annals of Mathematical Statistics 34(2), 1963): order statistics, so
    that no single slow iteration decides. Fewer than six differences have none.
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
