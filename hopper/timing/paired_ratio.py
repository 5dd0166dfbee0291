"""The ratio of two sides that were measured in turns, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Ratio:
    """A ratio over paired rounds.

    mean: geometric mean over the rounds. low, high: 95 % interval; None with fewer than two rounds.
    """

    mean: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def is_shown(self) -> bool:
        """Return whether the interval excludes 1, so that the rounds show that the sides differ."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def inverse(self) -> Ratio:
        """The ratio of the second side to the first."""
        low = None if self.high is None else 1 / self.high
        high = None if self.low is None else 1 / self.low
        return Ratio(1 / self.mean, low, high, self.rounds)


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the ratio of two sides measured in the same rounds.

    The interval is Student's t interval of the mean of the log ratios.

    Raises
    ------
    ValueError: sides of different length, no round, or a value that is not positive and finite.
    """
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(f"{len(numerators)} and {len(denominators)} rounds cannot be paired")
    for value in (*numerators, *denominators):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"expected positive, finite values, given {value}")
    # Here, since every rank loads this module and few need as much of SciPy.
    from scipy.special import stdtrit

    logs = [math.log(a / b) for a, b in zip(numerators, denominators, strict=True)]
    mean = fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), None, None, len(logs))
    variance = sum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
    quantile = float(stdtrit(len(logs) - 1, 0.5 + CONFIDENCE / 2))
    half = quantile * math.sqrt(variance / len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))
