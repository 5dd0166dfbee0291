"""The picture of an A/B: bytes by cause and seconds by stage, with one bar for each engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hopper.bench.statistics import Figures, engines_of, figures
from hopper.bench.table import describe_setting
from hopper.palette import CAUSES as CAUSE_NAMES
from hopper.palette import GRID, SOFT_TEXT, hex_of, text_on
from hopper.palette import STAGES as STAGE_NAMES
from hopper.run_log import STAGES
from hopper.traffic import CAUSES

PICTURE_FILE: Final = "ab.png"

CAUSE_COLOURS: Final = {cause: hex_of(name) for cause, name in CAUSE_NAMES.items()}
STAGE_COLOURS: Final = {stage: hex_of(name) for stage, name in STAGE_NAMES.items()}
_SMALLEST_LABELLED: Final = 0.15
"""A smaller part, in shares of the longest bar, has no room for a label."""

_SMALLEST_TOLD: Final = 0.005
"""A smaller part, in shares of its own bar, is not named. Bars and legend leave out what is smaller
in every bar, in shares of the longest."""
_MOST_TOLD: Final = 3
"""So many parts without a label, the largest, have room beside a bar."""
_SHORT_BAR: Final = 0.45
"""A bar up to this share of the longest one has room for words beside it."""


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture as PNG. It is complete as soon as it exists.

    Parameters
    ----------
    results: the content of results.json.
    """
    runs = results["runs"]
    figures_by_engine = {engine: figures(runs, engine) for engine in engines_of(runs)}
    figure = Figure(figsize=(12, 2.0 + 0.75 * len(figures_by_engine)), dpi=150)
    figure.set_layout_engine("constrained", h_pad=0.1)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _bars(
        left,
        {
            engine: {c: engine_figures.bytes[c] / 1e6 for c in CAUSES}
            for engine, engine_figures in figures_by_engine.items()
        },
        CAUSE_COLOURS,
        "Traffic between servers, MB an epoch",
        "MB",
    )
    _bars(
        right,
        {engine: _stages(engine_figures) for engine, engine_figures in figures_by_engine.items()},
        STAGE_COLOURS,
        "Where a rank's time goes, seconds an epoch",
        "s",
    )
    figure.supxlabel(describe_setting(results), fontsize=8, color=SOFT_TEXT)
    unfinished = path.with_name(path.name + ".unfinished")
    figure.savefig(unfinished, format="png")
    unfinished.replace(path)


def _stages(engine_figures: Figures) -> dict[str, float]:
    return {stage: engine_figures.stage_seconds[stage] for stage in STAGES}


def _bars(
    axes: Axes,
    parts_by_engine: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
    title: str,
    unit: str,
) -> None:
    """Draw stacked horizontal bars. A part is labelled with its name and value if there is room."""
    engines = list(parts_by_engine)
    totals = {engine: sum(parts.values()) for engine, parts in parts_by_engine.items()}
    longest = max(totals.values()) or 1.0
    left = dict.fromkeys(engines, 0.0)
    for name, colour in colours.items():
        widths = [parts_by_engine[engine][name] for engine in engines]
        if max(widths) < _SMALLEST_TOLD * longest:
            continue
        starts = [left[engine] for engine in engines]
        axes.barh(
            engines, widths, left=starts, color=colour, height=0.62, label=name,
            edgecolor="white", linewidth=0.8,
        )  # fmt: skip
        for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
            if width >= _SMALLEST_LABELLED * longest:
                _label_part(axes, start + width / 2, row, name, width, colour)
        left = {engine: left[engine] + width for engine, width in zip(engines, widths, strict=True)}
    for row, engine in enumerate(engines):
        _label_total(axes, row, parts_by_engine[engine], longest, unit)
    # An option a line, so that long labels take no width from the bars.
    axes.set_yticks(range(len(engines)), [engine.replace(":", "\n") for engine in engines])
    _finish(axes, title, longest)


def _label_total(
    axes: Axes, y: float, parts: Mapping[str, float], longest: float, unit: str
) -> None:
    """Write the total beside a bar, and beside a short bar also the parts without a label."""
    total = sum(parts.values())
    total_label = axes.annotate(
        f"{_short(total)} {unit}", (total, y), (5, 0),
        textcoords="offset points", va="center", fontsize=10, fontweight="bold",
    )  # fmt: skip
    if total > _SHORT_BAR * longest:
        return
    unlabelled = [
        name
        for name, value in parts.items()
        if _SMALLEST_TOLD * total <= value < _SMALLEST_LABELLED * longest
    ]
    largest = sorted(unlabelled, key=parts.__getitem__)[-_MOST_TOLD:]
    part_texts = [f"{name} {_short(parts[name])}" for name in unlabelled if name in largest]
    axes.annotate(
        ", ".join(part_texts), (1, 0.5), (6, 0), xycoords=total_label, textcoords="offset points",
        va="center", fontsize=9, color=SOFT_TEXT,
    )  # fmt: skip


def _label_part(axes: Axes, x: float, y: float, name: str, value: float, colour: str) -> None:
    axes.text(
        x, y, f"{name}\n{_short(value)}", ha="center", va="center", fontsize=9, linespacing=1.05,
        color=text_on(colour),
    )  # fmt: skip


def _finish(axes: Axes, title: str, longest: float) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=28)
    axes.set_xlim(0, 1.2 * longest)
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, labelsize=10)
    axes.tick_params(axis="x", labelsize=9, colors=SOFT_TEXT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    if not axes.containers:
        # Nothing was sent, so there is no bar to explain.
        return
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=6, frameon=False, fontsize=9,
        handlelength=0.9, handletextpad=0.4, columnspacing=1.1, borderaxespad=0.2,
    )  # fmt: skip


def _short(value: float) -> str:
    """Write a number with three significant digits and without an exponent."""
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.4f}"
