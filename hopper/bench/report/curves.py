"""Curves of several runs in one plot, and below it their differences from the first curve.

Curves that coincide all stay visible. The first one is broad and pale. The others are thin dashes
that take turns along it.
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
"""Smaller differences, and differences of 0, are drawn on the axis."""


class Curve(NamedTuple):
    """A run's values over ``xs``; ``colour`` is a class of :mod:`hopper.bench.report.colours`."""

    name: str
    colour: str
    xs: Sequence[float]
    values: Sequence[float]
    exact: bool = True


class _Scale(NamedTuple):
    """Turns values into shares of the plot's height, with 0 at the top."""

    low: float
    high: float
    logarithmic: bool
    ticks: Sequence[tuple[float, str]]

    def position(self, value: float) -> float:
        """Return the share of the height at which a value is drawn."""
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
    format_value: Callable[[float], str] = three_digits,
    limit: tuple[float, float] | None = None,
    *,
    compared: bool = True,
    mark: float | None = None,
) -> Markup:
    """Plot curves, and below them how far each one is from the first.

    Parameters
    ----------
    limit: exact engines differ by less than this, up to this x.
    compared: whether all curves show the same quantity. If not, no differences are drawn.
    mark: the x of a vertical line.
    """
    thinned_curves = [_thin(curve, _mean) for curve in curves]
    scale = _linear(thinned_curves)
    parts: list[Child] = [
        legend({curve.name: curve.colour for curve in thinned_curves})
        if len(thinned_curves) > 1
        else None,
        _plot(thinned_curves, scale, 220, x_name, format_value, title, mark=mark),
    ]
    differences = _differences(curves) if compared else []
    if differences:
        reference = curves[0].name
        caption = f"Relative difference to {reference}"
        if limit is not None:
            caption += f" (dotted: limit {limit[0]:g})"
        thinned = [_thin(difference, max) for difference in differences]
        parts += [
            tag("p", caption, class_="panel-caption"),
            _plot(thinned, _decades(thinned, limit), 110, x_name, _format_difference,
                  f"{title}: {caption}", limit),
        ]  # fmt: skip
    return figure(title, subtitle, *parts, tag("p", x_name, class_="axis-name"))


def _differences(curves: Sequence[Curve]) -> list[Curve]:
    if len(curves) < 2:
        return []
    reference_values = dict(zip(curves[0].xs, curves[0].values, strict=True))
    differences = []
    for curve in curves[1:]:
        pairs = [
            (x, v, reference_values[x])
            for x, v in zip(curve.xs, curve.values, strict=True)
            if x in reference_values
        ]
        values = [_relative(value, reference) for _, value, reference in pairs]
        differences.append(curve._replace(xs=[x for x, _, _ in pairs], values=values))
    return differences


def _relative(value: float, reference: float) -> float:
    difference = abs(value - reference)
    return difference / abs(reference) if difference and reference else difference


def _thin(curve: Curve, combine: Callable[[Sequence[float]], float]) -> Curve:
    """Reduce a curve to at most ``_MOST_POINTS`` points. Each one combines equally many neighbours.

    Values that are not finite are left out.
    """
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
    values = [value for curve in curves for value in curve.values] or [0.0]
    low, high = min(values), max(values)
    if high == low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    room = 0.06 * (high - low)
    low, high = (0.0 if 0 <= low < 0.25 * high else low - room), high + room
    return _Scale(low, high, False, [(t, f"{t:.6g}") for t in round_steps(low, high, 4)])


def _decades(curves: Sequence[Curve], limit: tuple[float, float] | None) -> _Scale:
    largest = max([value for curve in curves for value in curve.values], default=0.0)
    high = 10.0 ** math.ceil(math.log10(max(largest, 10 * (limit[0] if limit else 1e-4))))
    top = round(math.log10(high))
    step = max(1, round((top + 9) / 3))
    ticks = [(10.0**power, _power(power)) for power in range(top, -9, -step)]
    return _Scale(_FLOOR, high, True, [*ticks, (_FLOOR, "0")])


def _power(power: int) -> str:
    return f"{10**power:,}" if 0 <= power <= 3 else f"1e{power}"


def _format_difference(value: float) -> str:
    return "none" if value == 0 else f"{value:.1e}"


def _plot(
    curves: Sequence[Curve],
    scale: _Scale,
    height: int,
    x_name: str,
    format_value: Callable[[float], str],
    label: str,
    limit: tuple[float, float] | None = None,
    mark: float | None = None,
) -> Markup:
    last = max([x for curve in curves for x in curve.xs], default=1.0) or 1.0
    first = min([x for curve in curves for x in curve.xs], default=0.0)
    width = (last - first) or 1.0
    grid = [
        tag("line", x1=0, x2="100%", y1=percent(scale.position(t)), y2=percent(scale.position(t)),
            class_="grid")
        for t, _ in scale.ticks
    ]  # fmt: skip
    if limit is not None:
        y, end = percent(scale.position(limit[0])), percent(min(1.0, (limit[1] - first) / width))
        grid.append(tag("line", x1=0, x2=end, y1=y, y2=y, class_="limit"))
    if mark is not None:
        x = percent((mark - first) / width)
        grid.append(tag("line", x1=x, x2=x, y1=0, y2="100%", class_="one"))
    lines = [_line(index, curves, scale, first, width) for index in range(len(curves))]
    inner = tag("svg", lines, viewBox="0 0 1000 1000", preserveAspectRatio="none", width="100%",
                height="100%")  # fmt: skip
    words = "; ".join(f"{c.name} ends at {format_value(c.values[-1])}" for c in curves if c.values)
    svg = tag("svg", grid, inner, tag("line", y1=0, y2="100%", class_="cross"), role="img",
              aria_label=f"{label}. {words}", width="100%", height=height)  # fmt: skip
    y_labels = [
        tag("span", text, style=f"top:{percent(scale.position(value))}")
        for value, text in scale.ticks
    ]
    x_ticks = [t for t in round_steps(first, last, 6) if t == int(t)]
    x_labels = [
        tag("span", f"{t:g}", style=f"left:{percent((t - first) / width)}") for t in x_ticks
    ]
    return tag(
        "div",
        tag("div", y_labels, class_="y-axis", style=f"height:{height}px"),
        tag("div", svg, class_="canvas", data_curves=_readable(curves, first, width, format_value),
            data_x=x_name),
        tag("div"),
        tag("div", x_labels, class_="ticks"),
        class_="plot",
    )  # fmt: skip


def _line(index: int, curves: Sequence[Curve], scale: _Scale, first: float, width: float) -> Markup:
    curve = curves[index]
    points = " ".join(
        f"{1000 * (x - first) / width:.1f},{1000 * scale.position(v):.1f}"
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
    curves: Sequence[Curve], first: float, width: float, format_value: Callable[[float], str]
) -> str:
    """Write JSON for script.js, which shows the nearest values under the pointer.

    It has the name of each curve, and of each point the share of the width and two texts.
    """
    return json.dumps(
        [
            {
                "name": curve.name,
                "points": [
                    [round((x - first) / width, 4), f"{x:g}", format_value(value)]
                    for x, value in zip(curve.xs, curve.values, strict=True)
                ],
            }
            for curve in curves
        ],
        separators=(",", ":"),
    )
