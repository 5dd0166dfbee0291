"""The picture of an A/B: bytes by cause and seconds by stage, with one bar for each engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hopper.bench.statistics import engines_of, figures
from hopper.bench.table import describe_setting
from hopper.display.palette import CAUSES, GRID, SOFT_TEXT, STAGES, hex_of, text_on

PICTURE_FILE: Final = "ab.png"
STAGE_COLOURS: Final = {stage: hex_of(name) for stage, name in STAGES.items()}
_CAUSE_COLOURS: Final = {cause: hex_of(name) for cause, name in CAUSES.items()}
_LEAST_LABELLED: Final = 0.15
"""A smaller part, in shares of the longest bar, has no room for a label."""
_LEAST_DRAWN: Final = 0.005
"""What is smaller in every bar, in shares of the longest one, is left out."""


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture of the content of results.json as PNG, complete as soon as it exists."""
    by_engine = {engine: figures(results["runs"], engine) for engine in engines_of(results["runs"])}
    figure = Figure(figsize=(12, 2.0 + 0.75 * len(by_engine)), dpi=150)
    figure.set_layout_engine("constrained", h_pad=0.1)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    megabytes = {
        engine: {cause: count / 1e6 for cause, count in side.bytes.items()}
        for engine, side in by_engine.items()
    }
    seconds = {engine: side.stage_seconds for engine, side in by_engine.items()}
    _bars(left, megabytes, _CAUSE_COLOURS, "Traffic between servers, MB an epoch", "MB")
    _bars(right, seconds, STAGE_COLOURS, "Where a rank's time goes, seconds an epoch", "s")
    figure.supxlabel(describe_setting(results), fontsize=8, color=SOFT_TEXT)
    unfinished = path.with_name(path.name + ".unfinished")
    figure.savefig(unfinished, format="png")
    unfinished.replace(path)


def _bars(
    axes: Axes,
    parts_by_engine: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
    title: str,
    unit: str,
) -> None:
    """Draw stacked horizontal bars. Their parts are labelled where there is room."""
    engines = list(parts_by_engine)
    totals = [0.0] * len(engines)
    longest = max(sum(parts.values()) for parts in parts_by_engine.values()) or 1.0
    for name, colour in colours.items():
        widths = [parts[name] for parts in parts_by_engine.values()]
        if max(widths) < _LEAST_DRAWN * longest:
            continue
        bars = axes.barh(
            engines, widths, left=totals, color=colour, height=0.62, label=name,
            edgecolor="white", linewidth=0.8,
        )  # fmt: skip
        labels = [
            f"{name}\n{_short(width)}" if width >= _LEAST_LABELLED * longest else ""
            for width in widths
        ]
        axes.bar_label(bars, labels, label_type="center", fontsize=9, color=text_on(colour))
        totals = [total + width for total, width in zip(totals, widths, strict=True)]
    for row, total in enumerate(totals):
        axes.annotate(
            f"{_short(total)} {unit}", (total, row), (5, 0),
            textcoords="offset points", va="center", fontsize=10, fontweight="bold",
        )  # fmt: skip
    # An option a line, so that long labels take no width from the bars.
    axes.set_yticks(range(len(engines)), [engine.replace(":", "\n") for engine in engines])
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=28)
    axes.set_xlim(0, 1.2 * longest)
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, labelsize=10)
    axes.tick_params(axis="x", labelsize=9, colors=SOFT_TEXT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    if axes.containers:
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=6, frameon=False, fontsize=9,
            handlelength=0.9, handletextpad=0.4, columnspacing=1.1, borderaxespad=0.2,
        )  # fmt: skip


def _short(value: float) -> str:
    """Write a number with three significant digits and without an exponent."""
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.4f}"
