"""Horizontal bars: stacked parts, a value with its single measurements, a ratio with its interval.

Positions are shares of the width, so a chart fits any column while its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from hopper.bench.report.markup import Child, Markup, breakable, percent, tag
from hopper.bench.report.tables import Cell, table
from hopper.paired_ratio import Ratio

Format = Callable[[float], str]

_LONGEST: Final = 0.8
"""The longest bar takes this share of the column. The total stands in the rest."""
_LABELLED: Final = 0.18
"""A part shows its value if it is at least this share of the longest bar."""
_HEIGHT: Final = 26


class Part(NamedTuple):
    """A part of a bar; ``key`` names its colour in style.css (``k-<key>``)."""

    key: str
    name: str
    value: float


class Row(NamedTuple):
    """A value, and the single measurements that it was computed from.

    Attributes
    ----------
    colour: a class of :mod:`hopper.bench.report.colours`.
    points: the name and the value of each measurement.
    """

    name: str
    colour: str
    value: float
    points: Sequence[tuple[str, float]]


def figure(title: str, subtitle: str, *body: Child, numbers: Child = None) -> Markup:
    """Make a chart with its heading, and below it the numbers that it shows."""
    details = tag("details", tag("summary", "Numbers"), numbers, class_="numbers")
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", subtitle) if subtitle else None),
        *body,
        details if numbers is not None else None,
    )


def legend(entries: Mapping[str, str]) -> Markup:
    """Make a list of colours and what they mean.

    Parameters
    ----------
    entries: the class that sets the colour, by name.
    """
    keys = [
        tag("li", tag("span", class_=f"swatch {key}", aria_hidden="true"), name)
        for name, key in entries.items()
    ]
    return tag("ul", keys, class_="legend")


def stacked_bars(
    title: str,
    subtitle: str,
    bars: Mapping[str, Sequence[Part]],
    format_value: Format,
    unit_name: str,
) -> Markup:
    """Make one bar for each name, divided into parts. Parts that are 0 everywhere are left out."""
    present = {part.key for parts in bars.values() for part in parts if part.value > 0}
    used = {part.key: part.name for parts in bars.values() for part in parts if part.key in present}
    parts_by_name = {name: [p for p in parts if p.key in used] for name, parts in bars.items()}
    totals = {name: sum(part.value for part in parts) for name, parts in parts_by_name.items()}
    longest = max(totals.values(), default=0.0)
    rows = [
        _stacked_row(name, parts, totals[name], longest, format_value)
        for name, parts in parts_by_name.items()
    ]
    head = [unit_name, *used.values(), "all"]
    body = [
        [
            name,
            *(Cell(format_value(part.value)) for part in parts),
            Cell(format_value(totals[name])),
        ]
        for name, parts in parts_by_name.items()
    ]
    return figure(
        title,
        subtitle,
        legend({name: f"k-{key}" for key, name in used.items()}),
        tag("div", rows, class_="bars"),
        numbers=table(f"{title}: numbers", head, body),
    )


def _stacked_row(
    name: str, parts: Sequence[Part], total: float, longest: float, format_value: Format
) -> Markup:
    start, marks = 0.0, []
    for part in parts:
        if part.value <= 0:
            continue
        of_total = part.value / total
        marks.append(
            tag(
                "rect", x=percent(start), y=0, width=percent(of_total), height=_HEIGHT,
                class_=f"k-{part.key}",
                data_tip=f"{name}\n{part.name}: {format_value(part.value)} ({of_total:.1%})",
            )
        )  # fmt: skip
        if part.value >= _LABELLED * longest:
            middle = percent(start + of_total / 2)
            marks.append(
                tag(
                    "text",
                    format_value(part.value),
                    x=middle,
                    y=_HEIGHT / 2,
                    class_=f"in k-{part.key}",
                )
            )
        start += of_total
    words = ", ".join(f"{part.name} {format_value(part.value)}" for part in parts if part.value > 0)
    width = _LONGEST * total / longest if longest else 0.0
    bar = tag(
        "svg", marks, role="img", aria_label=f"{name}: {words or 'nothing'}", height=_HEIGHT,
        class_="bar", style=f"width:{percent(width)}",
    )  # fmt: skip
    return tag(
        "div",
        tag("div", breakable(name), class_="bar-name"),
        tag("div", bar, tag("span", format_value(total), class_="bar-total"), class_="track"),
        class_="bar-row",
    )


def dotted_bars(
    title: str, subtitle: str, rows: Sequence[Row], format_value: Format, value_name: str
) -> Markup:
    """Make one bar for each row, with a dot for every single measurement."""
    longest = max((max([row.value, *(v for _, v in row.points)]) for row in rows), default=0.0)
    scale = 0.97 / longest if longest else 0.0
    bar_rows, body = [], []
    for row in rows:
        words = ", ".join(f"{what} {format_value(value)}" for what, value in row.points)
        bar = tag(
            "rect", x=0, y=0, width=percent(row.value * scale), height=_HEIGHT, rx=3,
            class_=row.colour, data_tip=f"{row.name}\n{value_name}: {format_value(row.value)}",
        )  # fmt: skip
        dots = [
            tag(
                "circle", cx=percent(value * scale), cy=_HEIGHT / 2, r=4,
                class_=f"dot {row.colour}", data_tip=f"{row.name}\n{what}: {format_value(value)}",
            )
            for what, value in row.points
        ]  # fmt: skip
        label = f"{row.name}: {value_name} {format_value(row.value)}; {words}"
        svg = tag("svg", bar, dots, role="img", aria_label=label, height=_HEIGHT, class_="wide")
        bar_rows.append(
            tag(
                "div",
                tag("div", row.name, class_="bar-name"),
                tag(
                    "div",
                    svg,
                    tag("span", format_value(row.value), class_="bar-total"),
                    class_="track",
                ),
                class_="bar-row",
            )
        )
        body.append([row.name, Cell(format_value(row.value)), words])
    numbers = table(f"{title}: numbers", ["", value_name, "single values"], body)
    return figure(title, subtitle, tag("div", bar_rows, class_="bars dotted"), numbers=numbers)


def ratios(title: str, subtitle: str, ratios_by_name: Mapping[str, tuple[str, Ratio]]) -> Markup:
    """Draw ratios with their intervals on a logarithmic axis on which 1 is marked.

    Parameters
    ----------
    ratios_by_name: by name, the class that sets its colour, and its ratio.
    """
    ends = [1.0]
    for _, ratio in ratios_by_name.values():
        ends += [ratio.mean, ratio.low or ratio.mean, ratio.high or ratio.mean]
    low, high = min(ends) / 1.08, max(ends) * 1.08

    def x_of(value: float) -> str:
        return percent(math.log(value / low) / math.log(high / low))

    ticks = [tick for tick in _ratio_ticks(low, high) if low <= tick <= high]
    lines = [
        tag("line", x1=x_of(t), x2=x_of(t), y1=-5, y2=35, class_="one" if t == 1 else "grid")
        for t in ticks
    ]
    rows = [
        _ratio_row(name, *colour_and_ratio, lines, x_of)
        for name, colour_and_ratio in ratios_by_name.items()
    ]
    labels = [tag("span", f"{tick:g}×", style=f"left:{x_of(tick)}") for tick in ticks]
    axis = tag("div", tag("div"), tag("div", labels, class_="ticks"), tag("div"), class_="bar-row")
    return figure(title, subtitle, tag("div", rows, axis, class_="bars ratios"))


def _ratio_row(
    name: str, colour: str, ratio: Ratio, lines: Child, x_of: Callable[[float], str]
) -> Markup:
    words = tell_ratio(ratio)
    marks: list[Markup] = []
    if ratio.low is not None and ratio.high is not None:
        marks.append(
            tag("line", x1=x_of(ratio.low), x2=x_of(ratio.high), y1=15, y2=15,
                class_=f"interval {colour}")
        )  # fmt: skip
    tip = f"{name}\n{words}"
    marks.append(tag("circle", cx=x_of(ratio.mean), cy=15, r=6, class_=colour, data_tip=tip))
    svg = tag("svg", lines, marks, role="img", aria_label=f"{name}: {words}", height=30,
              class_="wide")  # fmt: skip
    return tag(
        "div",
        tag("div", breakable(name), class_="bar-name"),
        tag("div", svg, class_="track"),
        tag("div", tag("b", f"{ratio.mean:.2f}×"), tell_interval(ratio), class_="ratio-told"),
        class_="bar-row",
    )


def tell_ratio(ratio: Ratio) -> str:
    """Write a ratio and its interval, "1.80× (1.60 to 2.03)"."""
    return f"{ratio.mean:.2f}×{tell_interval(ratio)}"


def tell_interval(ratio: Ratio) -> str:
    """Write the interval of a ratio, " (1.60 to 2.03)", or that it has none."""
    if ratio.low is None or ratio.high is None:
        return " (no interval)"
    return f" ({ratio.low:.2f} to {ratio.high:.2f})"


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Choose 1 and a few round ratios around it."""
    span = high / low
    if span > 12:
        return [0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64]
    if span > 2.5:
        return [0.25, 0.5, 1, 2, 3, 4, 6, 8, 10]
    return [0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.4]
