"""Curves of several runs in one plot, and below it how far they are from the first.

Curves that coincide are drawn so that all of them can be seen: the first is broad and pale, the
others are thin dashes that take turns along it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from hopper.bench.report.bars import figure, legend
from hopper.bench.report.markup import Child, Markup, percent, tag
from hopper.bench.report.units import round_steps, three_digits

_MOST_POINTS: Final = 400
_DASH: Final = 7
_FLOOR: Final = 1e-9
"""differences below it, and none at all, are drawn on the axis"""


class Curve(NamedTuple):
    """A run's values over ``xs``; ``colour`` is a class of :mod:`hopper.bench.report.colours`."""

    name: str
    colour: str
    xs: Sequence[float]
    values: Sequence[float]
    exact: bool = True


class _Scale(NamedTuple):
    """Values to shares of the height, 0 at the top."""

    low: float
    high: float
    logarithmic: bool
    ticks: Sequence[tuple[float, str]]

    def place(self, value: float) -> float:
        if self.logarithmic:
            value, low, high = (math.log10(max(v, self.low)) for v in (value, self.low, self.high))
        else:
            low, high = self.low, self.high
        return 1 - (value - low) / (high - low)


def curves_figure(
    title: str,
    subtitle: str,
    curves: Sequence[Curve],
    x_name: str,
    told: Callable[[float], str] = three_digits,
    limit: tuple[float, float] | None = None,
    *,
    compared: bool = True,
    mark: float | None = None,
) -> Markup:
    """Curves, and how far the others are from the first.

    Parameters
    ----------
    limit: a difference that exact engines stay below, and the x up to which that holds.
    compared: whether the curves are of the same quantity, so that their differences say something.
    mark: an x at which there is a line from top to bottom.
    """
    drawn = [_thinned(each, _mean) for each in curves]
    scale = _linear(drawn)
    parts: list[Child] = [
        legend({each.name: each.colour for each in drawn}) if len(drawn) > 1 else None,
        _plot(drawn, scale, 220, x_name, told, title, mark=mark),
    ]
    differences = _differences(curves) if compared else []
    if differences:
        reference = curves[0].name
        caption = f"Relative difference to {reference}"
        if limit is not None:
            caption += f" (dotted: limit {limit[0]:g})"
        thinned = [_thinned(each, max) for each in differences]
        parts += [
            tag("p", caption, class_="panel-caption"),
            _plot(thinned, _decades(thinned, limit), 110, x_name, _told_difference,
                  f"{title}: {caption}", limit),
        ]  # fmt: skip
    return figure(title, subtitle, *parts, tag("p", x_name, class_="axis-name"))


def _differences(curves: Sequence[Curve]) -> list[Curve]:
    if len(curves) < 2:
        return []
    first = dict(zip(curves[0].xs, curves[0].values, strict=True))
    found = []
    for each in curves[1:]:
        pairs = [(x, v, first[x]) for x, v in zip(each.xs, each.values, strict=True) if x in first]
        values = [_relative(value, reference) for _, value, reference in pairs]
        found.append(each._replace(xs=[x for x, _, _ in pairs], values=values))
    return found


def _relative(value: float, reference: float) -> float:
    difference = abs(value - reference)
    return difference / abs(reference) if difference and reference else difference


def _thinned(curve: Curve, combine: Callable[[Sequence[float]], float]) -> Curve:
    """At most ``_MOST_POINTS``, each combining as many neighbours; not-a-numbers are left out."""
    pairs = [
        (x, value) for x, value in zip(curve.xs, curve.values, strict=True) if math.isfinite(value)
    ]
    width = max(1, math.ceil(len(pairs) / _MOST_POINTS))
    groups = [pairs[start : start + width] for start in range(0, len(pairs), width)]
    return curve._replace(
        xs=[group[0][0] for group in groups],
        values=[combine([value for _, value in group]) for group in groups],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _linear(curves: Sequence[Curve]) -> _Scale:
    values = [value for each in curves for value in each.values] or [0.0]
    low, high = min(values), max(values)
    if high == low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    room = 0.06 * (high - low)
    low, high = (0.0 if 0 <= low < 0.25 * high else low - room), high + room
    return _Scale(low, high, False, [(t, f"{t:.6g}") for t in round_steps(low, high, 4)])


def _decades(curves: Sequence[Curve], limit: tuple[float, float] | None) -> _Scale:
    largest = max([value for each in curves for value in each.values], default=0.0)
    high = 10.0 ** math.ceil(math.log10(max(largest, 10 * (limit[0] if limit else 1e-4))))
    top = round(math.log10(high))
    step = max(1, round((top + 9) / 3))
    ticks = [(10.0**power, _power(power)) for power in range(top, -9, -step)]
    return _Scale(_FLOOR, high, True, [*ticks, (_FLOOR, "0")])


def _power(power: int) -> str:
    return f"{10**power:,}" if 0 <= power <= 3 else f"1e{power}"


def _told_difference(value: float) -> str:
    return "none" if value == 0 else f"{value:.1e}"


def _plot(
    curves: Sequence[Curve],
    scale: _Scale,
    height: int,
    x_name: str,
    told: Callable[[float], str],
    label: str,
    limit: tuple[float, float] | None = None,
    mark: float | None = None,
) -> Markup:
    last = max([x for each in curves for x in each.xs], default=1.0) or 1.0
    first = min([x for each in curves for x in each.xs], default=0.0)
    width = (last - first) or 1.0
    grid = [
        tag("line", x1=0, x2="100%", y1=percent(scale.place(t)), y2=percent(scale.place(t)),
            class_="grid")
        for t, _ in scale.ticks
    ]  # fmt: skip
    if limit is not None:
        y, end = percent(scale.place(limit[0])), percent(min(1.0, (limit[1] - first) / width))
        grid.append(tag("line", x1=0, x2=end, y1=y, y2=y, class_="limit"))
    if mark is not None:
        x = percent((mark - first) / width)
        grid.append(tag("line", x1=x, x2=x, y1=0, y2="100%", class_="one"))
    lines = [_line(index, curves, scale, first, width) for index in range(len(curves))]
    inner = tag("svg", lines, viewBox="0 0 1000 1000", preserveAspectRatio="none", width="100%",
                height="100%")  # fmt: skip
    words = "; ".join(f"{c.name} ends at {told(c.values[-1])}" for c in curves if c.values)
    svg = tag("svg", grid, inner, tag("line", y1=0, y2="100%", class_="cross"), role="img",
              aria_label=f"{label}. {words}", width="100%", height=height)  # fmt: skip
    y_labels = [
        tag("span", text, style=f"top:{percent(scale.place(value))}") for value, text in scale.ticks
    ]
    x_ticks = [t for t in round_steps(first, last, 6) if t == int(t)]
    x_labels = [
        tag("span", f"{t:g}", style=f"left:{percent((t - first) / width)}") for t in x_ticks
    ]
    return tag(
        "div",
        tag("div", y_labels, class_="y-axis", style=f"height:{height}px"),
        tag("div", svg, class_="canvas", data_curves=_readable(curves, first, width, told),
            data_x=x_name),
        tag("div"),
        tag("div", x_labels, class_="ticks"),
        class_="plot",
    )  # fmt: skip


def _line(index: int, curves: Sequence[Curve], scale: _Scale, first: float, width: float) -> Markup:
    curve = curves[index]
    points = " ".join(
        f"{1000 * (x - first) / width:.1f},{1000 * scale.place(v):.1f}"
        for x, v in zip(curve.xs, curve.values, strict=True)
    )
    others = len(curves) - 1
    broad = index == 0 and others > 0 and not scale.logarithmic and curve.exact
    dashes = offset = None
    if others > 1 and index > 0 and curve.exact and not scale.logarithmic:
        dashes, offset = f"{_DASH} {_DASH * (others - 1)}", -_DASH * (index - 1)
    if len(curve.xs) == 1:
        # A single point has no length; a line of none with round ends is a dot.
        points = f"{points} {points}"
    return tag("polyline", points=points, class_=f"line {curve.colour}{' broad' if broad else ''}",
               stroke_dasharray=dashes, stroke_dashoffset=offset)  # fmt: skip


def _readable(
    curves: Sequence[Curve], first: float, width: float, told: Callable[[float], str]
) -> str:
    """What script.js reads out under the pointer: by curve, place and words of each point."""
    return json.dumps(
        [
            {
                "name": curve.name,
                "points": [
                    [round((x - first) / width, 4), f"{x:g}", told(value)]
                    for x, value in zip(curve.xs, curve.values, strict=True)
                ],
            }
            for curve in curves
        ],
        separators=(",", ":"),
    )
