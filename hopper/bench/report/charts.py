"""Charts as SVG to be put into a page, whose colours are variables of the page's style sheet.

matplotlib draws with a stand-in for each variable. The stand-ins are replaced in the text that it
wrote, so that a chart is light or dark as the page is.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import StringIO
from itertools import pairwise
from typing import Any, Final

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hopper.bench.report.spans import Timeline
from hopper.bench.report.units import quantity
from hopper.bench.verdict import tell_ratio
from hopper.display.palette import COLOURS, STAGES
from hopper.timing.paired_ratio import Ratio

Shades = Mapping[str, tuple[str, float]]
"""By name, a colour of the palette and its opacity."""
_NAMES: Final = ("ink", "soft", "rule", "surface", *COLOURS, *(f"on-{name}" for name in COLOURS))
_INK: Final = {name: f"#fe00{number:02x}" for number, name in enumerate(_NAMES)}
_VARIABLES: Final = {ink: f"var(--{name})" for name, ink in _INK.items()}
_STYLE: Final = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 11, "text.color": _INK["ink"],
    "axes.edgecolor": _INK["rule"], "axes.labelcolor": _INK["soft"], "grid.color": _INK["rule"],
    "xtick.color": _INK["soft"], "ytick.color": _INK["soft"], "axes.spines.top": False,
    "axes.spines.right": False, "axes.spines.left": False, "axes.facecolor": "none",
    "figure.facecolor": "none", "xtick.major.size": 0, "ytick.major.size": 0,
}  # fmt: skip
_NARROW, _WIDE, _ROW = 380, 1040, 42
_HEIGHTS: Final = {"wait": 0.14, "migrate": 0.34, "sync": 0.34}


def bars(
    title: str, rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], unit: str
) -> str:
    """Draw a bar for each row, divided into the parts that have colours."""
    longest = max((sum(parts.values()) for parts in rows.values()), default=0.0) or 1.0

    def paint(axes: Axes) -> None:
        for place, (name, parts) in enumerate(rows.items()):
            start = 0.0
            for part, colour in colours.items():
                value = parts.get(part, 0.0)
                axes.barh(place, value, 0.46, start, color=_INK[colour], edgecolor=_INK["surface"])
                if value >= 0.17 * longest:
                    _write(axes, start + value / 2, place, quantity(value, unit), "center",
                           color=_INK[f"on-{colour}"])  # fmt: skip
                start += value
            _write(axes, 0, place - 0.46, _shorten(name))
            _write(axes, longest, place - 0.46, quantity(start, unit), "right", weight="bold")
        axes.set(xlim=(0, longest), ylim=(len(rows) - 0.7, -0.7))
        axes.axis("off")

    return _draw(title, _ROW * len(rows) + 4, paint)


def ratios(title: str, by_name: Mapping[str, Ratio], shades: Shades) -> str:
    """Draw ratios with their intervals on a logarithmic axis on which 1 is marked."""
    ends = [end for r in by_name.values() for end in (r.low, r.mean, r.high) if end is not None]
    low, high = min(1.0, *ends) / 1.1, max(1.0, *ends) * 1.1
    fine, coarse = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3), (0.1, 0.2, 0.5, 1, 2, 5, 10, 50)
    ticks = [tick for tick in (fine if high / low < 4 else coarse) if low <= tick <= high]

    def paint(axes: Axes) -> None:
        axes.axvline(1, color=_INK["soft"], linestyle="--", linewidth=1)
        beside = axes.get_yaxis_transform()
        for place, (name, ratio) in enumerate(by_name.items()):
            colour, alpha = _INK[shades[name][0]], shades[name][1]
            if ratio.low and ratio.high:
                axes.hlines(place, ratio.low, ratio.high, colour, alpha=alpha / 2, linewidth=5)
            axes.plot(ratio.mean, place, "o", color=colour, alpha=alpha, markersize=9)
            _write(axes, 0, place - 0.4, _shorten(name), transform=beside)
            _write(axes, 1, place - 0.4, tell_ratio(ratio), "right", transform=beside)
        axes.set(xlim=(low, high), ylim=(len(by_name) - 0.5, -0.7), xscale="log", yticks=[])
        axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
        axes.minorticks_off()

    return _draw(title, _ROW * len(by_name) + 30, paint)


def lines(
    title: str,
    curves: Mapping[str, Sequence[float | None]],
    shades: Shades,
    x_name: str,
    first: int = 0,
    marked: int | None = None,
) -> str:
    """Draw values at ``first``, ``first`` + 1 and so on, and a dashed line at ``marked``.

    None or NaN leaves a gap. Curves that coincide stay visible: the later ones are thinner.
    """

    def paint(axes: Axes) -> None:
        for number, (name, values) in enumerate(curves.items(), 1):
            ys = np.array([math.nan if value is None else value for value in values])
            ys[~np.isfinite(ys)] = math.nan
            starts = np.arange(0, len(ys), max(1, math.ceil(len(ys) / 400)))
            means = np.add.reduceat(ys, starts) / np.diff(np.append(starts, len(ys)))
            width = 1.8 + 1.8 * (len(curves) - number)
            axes.plot(starts + first, means, marker="o" if len(ys) < 30 else None,
                      markersize=width + 2, linewidth=width, color=_INK[shades[name][0]],
                      alpha=shades[name][1])  # fmt: skip
        if marked is not None:
            axes.axvline(marked, color=_INK["soft"], linestyle="--", linewidth=1)
        axes.set_xlabel(x_name)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="y", linewidth=0.8)

    return _draw(title, 200, paint)


def timeline(title: str, shown: Timeline) -> str:
    """Draw what each rank did when. A line follows a model from rank to rank."""

    def paint(axes: Axes) -> None:
        for number, start in shown.iterations.items():
            axes.axvline(start, color=_INK["soft"], linewidth=0.8)
            axes.annotate(f"iteration {number}", (start, -0.7), (5, 0), va="center",
                          textcoords="offset points", color=_INK["soft"])  # fmt: skip
        visits = [s for s in shown.spans if s.stage == "compute" and s.model is not None]
        for one, then in pairwise(sorted(visits, key=lambda s: (s.iteration, s.model, s.start))):
            same = (one.iteration, one.model) == (then.iteration, then.model)
            if same and one.rank != then.rank:
                axes.plot([one.end, then.start], [one.rank, then.rank], color=_INK["soft"], lw=1)
        spans = [span for span in shown.spans if span.seconds > 3e-4 * shown.seconds]
        corners: list[Any] = []
        colours: list[str] = []
        for span in sorted(spans, key=lambda span: span.start):
            place, half = float(span.rank), _HEIGHTS.get(span.stage, 0.62) / 2
            if span.thread:
                place, half = span.rank + (-0.38 if span.thread == "plan" else 0.38), 0.04
            low, high, x, end = place - half, place + half, span.start, span.end
            corners.append([(x, low), (x, high), (end, high), (end, low)])
            colours.append(_INK[STAGES[span.stage]])
            model = span.model if span.stage == "compute" and not span.thread else None
            if model is not None and span.seconds > 0.02 * shown.seconds:
                _write(axes, (x + end) / 2, place, f"m{model}", "center", color=_INK["on-green"])
        axes.add_collection(PolyCollection(corners, facecolors=colours, zorder=2))
        names = [f"rank {rank}\nwaits {shown.waiting(rank):.0%}" for rank in range(shown.ranks)]
        axes.set_yticks(range(shown.ranks), names)
        axes.set(xlim=(0, shown.seconds), ylim=(shown.ranks - 0.4, -1))
        axes.xaxis.set_major_formatter(lambda seconds, _: quantity(seconds, "s"))
        axes.spines["bottom"].set_visible(False)

    return _draw(title, _ROW * shown.ranks + 60, paint, _WIDE)


def present(rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> dict[str, str]:
    """Return the colours of the parts that are not 0 everywhere."""
    return {p: c for p, c in colours.items() if any(parts.get(p) for parts in rows.values())}


def _write(axes: Axes, x: float, y: float, text: str, side: str = "left", **style: Any) -> None:
    axes.text(x, y, text, va="center", ha=side, **style)


def _shorten(name: str) -> str:
    """Make a name fit into a chart: letters that can be drawn, and not too many."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    return text if len(text) <= 36 else f"{text[:35]}…"


def _draw(title: str, height: int, paint: Callable[[Axes], None], width: int = _NARROW) -> str:
    """Return an SVG element. Each chart of a page has a title of its own."""
    file = StringIO()
    with (
        style.context(["default", _STYLE | {"svg.hashsalt": ascii(title)}]),
        warnings.catch_warnings(),
    ):
        # The font may lack a letter of somebody's name. A browser takes another font for it.
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure((width / 72, height / 72), layout="constrained")
        paint(figure.subplots())
        figure.savefig(file, format="svg", metadata={"Date": None})
    # Without the head of the file, whose style would be that of the page.
    body = re.sub(r"\n\s*", " ", file.getvalue()).partition("</defs>")[2]
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', body))
    # Ids count through each chart alone. Those that nothing refers to would clash on a page.
    body = re.sub(r'(<\w+) id="([^"]*)"', lambda m: m[0] if m[2] in used else m[1], body)
    body = re.sub(r"font-family: [^;\"]*", "font-family: inherit", body)
    body = re.sub("#fe00[0-9a-f]{2}", lambda m: _VARIABLES.get(m[0], m[0]), body)
    kind = ' class="wide"' if width == _WIDE else ""
    label = escape(title)
    return f'<svg viewBox="0 0 {width} {height}"{kind} role="img" aria-label="{label}">{body}'
