"""Numbers as text, with three significant digits and a unit that fits."""

from __future__ import annotations

import math
from typing import Final

_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"))


def quantity(value: float, unit: str = "") -> str:
    """Write a quantity of a unit with an SI prefix, and without an exponent."""
    factor, prefix = next((pair for pair in _PREFIXES if value >= pair[0]), (1e-6, "µ"))
    if value == 0 or (unit == "s" and value >= 1):
        factor, prefix = 1.0, ""
    number = value / factor
    whole = number == 0 or (unit != "s" and not prefix)
    places = 0 if whole else min(max(2 - math.floor(math.log10(number)), 0), 2)
    return f"{number:,.{places}f} {prefix}{unit}".rstrip()


def score(value: float | None) -> str:
    """Write a score with four decimals."""
    return "–" if value is None else f"{value:.4f}"


def difference(value: float | None) -> str:
    """Write a relative difference. None means that it was not checked."""
    return "not checked" if value is None else "0" if value == 0 else f"{value:.1e}"


def things(number: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
