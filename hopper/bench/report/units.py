"""Numbers as text, with three significant digits and a unit that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SECONDS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))


def three_digits(value: float) -> str:
    """Write a number with three significant digits and without an exponent."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(places, 0), 6)}f}"


def seconds(value: float) -> str:
    """Write seconds in minutes, seconds, milliseconds or microseconds."""
    if value >= 600:
        return f"{value / 60:,.0f} min"
    unit = next(candidate for candidate in _SECONDS if value >= candidate[0])
    return f"{three_digits(value * unit[2])} {unit[1]}" if value > 0 else "0 s"


def tick(value: float, longest: float) -> str:
    """Write a round number of seconds on an axis, in the unit of the end of the axis."""
    unit = next(candidate for candidate in _SECONDS if longest >= candidate[0])
    return f"{value * unit[2]:.6g} {unit[1]}" if value else "0"


def size(value: float) -> str:
    """Write bytes in decimal units, as rates of links are."""
    for least, unit in _BYTES:
        if value >= least:
            return f"{three_digits(value / least)} {unit}"
    return f"{value:,.0f} B"


def memory(value: float) -> str:
    """Write MiB, or GiB from 1024 MiB on."""
    return f"{three_digits(value / 1024)} GiB" if value >= 1024 else f"{three_digits(value)} MiB"


def count(value: float) -> str:
    """Write a number of things, from 10,000 on in thousands or millions."""
    if value >= 999_500:
        return f"{three_digits(value / 1e6)} M"
    if value >= 10_000:
        return f"{three_digits(value / 1e3)} k"
    return f"{value:,.0f}"


def share(value: float) -> str:
    """Write a share of 1 in per cent."""
    return f"{100 * value:.1f} %"


def difference(value: float | None) -> str:
    """Write a relative difference. None means that it was not checked."""
    if value is None:
        return "not checked"
    return "0" if value == 0 else f"{value:.1e}"


def things(number: int, noun: str, plural: str = "") -> str:
    """Write a number and its noun."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def join_words(names: Sequence[str]) -> str:
    """Join names by commas, and the last one by "and"."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def round_steps(low: float, high: float, steps: int = 5) -> list[float]:
    """Choose about ``steps`` round numbers from ``low`` to ``high`` for an axis."""
    if not high > low:
        return [low]
    raw = (high - low) / steps
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]
