"""Sentences about what a comparison shows.

A difference is reported only if the interval of the ratio excludes 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from hopper.timing.paired_ratio import Ratio


def tell_speed(engine: str, baseline: str, ratio: Ratio) -> str:
    """Say whether an engine is faster, from the baseline's time divided by the engine's."""
    if not ratio.is_shown:
        return f"no difference shown in time between {engine} and {baseline} ({why_not(ratio)})"
    if ratio.mean < 1:
        return f"{engine} takes {tell_ratio(ratio.inverse)} as long as {baseline}"
    return f"{engine} is {tell_ratio(ratio)} faster than {baseline}"


def tell_bytes(engine: str, baseline: str, ratio: Ratio | None) -> str:
    """Say whether an engine sends fewer bytes, from the baseline's bytes divided by the engine's.

    The ratio is None where one of them sends nothing.
    """
    if ratio is None:
        return f"the bytes of {engine} and {baseline} cannot be compared: one of them sends none"
    if not ratio.is_shown:
        return f"no difference shown in bytes between {engine} and {baseline} ({why_not(ratio)})"
    if ratio.mean < 1:
        return f"{engine} sends {tell_ratio(ratio.inverse)} as many bytes as {baseline}"
    return f"{engine} sends {tell_ratio(ratio)} fewer bytes than {baseline}"


def tell_ratio(ratio: Ratio) -> str:
    """Write a ratio with its interval, "1.80x (1.60 to 2.03)", or "1.80x (in every round)"."""
    mean = _number(ratio.mean)
    if ratio.low is None or ratio.high is None:
        return f"{mean}x (no interval)"
    if _number(ratio.low) == mean == _number(ratio.high):
        return f"{mean}x (in every round)"
    return f"{mean}x ({tell_bounds(ratio)})"


def tell_bounds(ratio: Ratio) -> str:
    """Write the interval of a ratio that has one, "1.60 to 2.03"."""
    assert ratio.low is not None
    assert ratio.high is not None
    return f"{_number(ratio.low)} to {_number(ratio.high)}"


def why_not(ratio: Ratio) -> str:
    """Say why rounds show no difference."""
    if ratio.low is None:
        return "one round has no interval"
    return f"{_number(ratio.mean)}x, {tell_bounds(ratio)}"


def most_telling(ratios: Mapping[str, Ratio]) -> str:
    """Choose the engine that a headline is about.

    It is the fastest that is shown to be faster than the baseline. Without one, it is the fastest
    that is not shown to differ, or else the least slow.
    """

    def rank(name: str) -> tuple[int, float]:
        ratio = ratios[name]
        certainty = (2 if ratio.mean > 1 else 0) if ratio.is_shown else 1
        return certainty, ratio.mean

    return max(ratios, key=rank)


def _number(value: float) -> str:
    """Write a number with two decimals, or fewer if it is large.

    A number close to 1 gets more decimals, so that an interval that excludes 1 does not show 1.
    """
    if value >= 10:
        return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    texts = (f"{value:.{places}f}" for places in (2, 3, 4))
    return next((text for text in texts if float(text) != 1 or value == 1), f"{value:.6g}")
