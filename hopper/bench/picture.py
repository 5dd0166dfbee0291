"""The picture of an A/B: bytes by cause and seconds by stage, one bar an engine."""

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
"""share of the longest bar below which a part has no room for its own label"""

_SMALLEST_TOLD: Final = 0.005
"""share of its own bar below which a part is not worth a word"""
_SHORT_BAR: Final = 0.45
"""share of the longest bar up to which there is room for words beside it"""


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture as PNG, under a temporary name and then renamed.

    Parameters
    ----------
    results: the content of results.json.
    """
    runs = results["runs"]
    measured = {engine: figures(runs, engine) for engine in engines_of(runs)}
    figure = Figure(figsize=(12, 2.0 + 0.75 * len(measured)), dpi=150)
    figure.set_layout_engine("constrained", h_pad=0.1)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _bars(
        left,
        {engine: {c: own.bytes[c] / 1e6 for c in CAUSES} for engine, own in measured.items()},
        CAUSE_COLOURS,
        "Traffic between servers, MB an epoch",
        "MB",
    )
    _bars(
        right,
        {engine: _stages(own) for engine, own in measured.items()},
        STAGE_COLOURS,
        "Where a rank's time goes, seconds an epoch",
        "s",
    )
    figure.supxlabel(describe_setting(results), fontsize=8, color=SOFT_TEXT)
    unfinished = path.with_name(path.name + ".unfinished")
    figure.savefig(unfinished, format="png")
    unfinished.replace(path)


def _stages(own: Figures) -> dict[str, float]:
    return {stage: own.stage_seconds[stage] for stage in STAGES}


def _bars(
    axes: Axes,
    parts_by_engine: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
    title: str,
    unit: str,
) -> None:
    """Stacked horizontal bars, each part labelled with its name and value where there is room."""
    engines = list(parts_by_engine)
    totals = {engine: sum(parts.values()) for engine, parts in parts_by_engine.items()}
    longest = max(totals.values()) or 1.0
    left = dict.fromkeys(engines, 0.0)
    for name, colour in colours.items():
        widths = [parts_by_engine[engine][name] for engine in engines]
        if not any(widths):
            continue
        starts = [left[engine] for engine in engines]
        axes.barh(
            engines, widths, left=starts, color=colour, height=0.62, label=name,
            edgecolor="white", linewidth=0.8,
        )  # fmt: skip
        for place, (start, width) in enumerate(zip(starts, widths, strict=True)):
            if width >= _SMALLEST_LABELLED * longest:
                _label_part(axes, start + width / 2, place, name, width, colour)
        left = {engine: left[engine] + width for engine, width in zip(engines, widths, strict=True)}
    for place, engine in enumerate(engines):
        _label_total(axes, place, parts_by_engine[engine], longest, unit)
    _finish(axes, title, longest)


def _label_total(
    axes: Axes, y: float, parts: Mapping[str, float], longest: float, unit: str
) -> None:
    """The total beside a bar; beside a short one also the parts that have no room within."""
    total = sum(parts.values())
    beside = axes.annotate(
        f"{_short(total)} {unit}", (total, y), (5, 0),
        textcoords="offset points", va="center", fontsize=10, fontweight="bold",
    )  # fmt: skip
    if total > _SHORT_BAR * longest:
        return
    told = [
        f"{name} {_short(value)}"
        for name, value in parts.items()
        if _SMALLEST_TOLD * total <= value < _SMALLEST_LABELLED * longest
    ]
    axes.annotate(
        ", ".join(told), (1, 0.5), (6, 0), xycoords=beside, textcoords="offset points",
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
        # Nothing was sent: no bar to explain.
        return
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=6, frameon=False, fontsize=9,
        handlelength=0.9, handletextpad=0.4, columnspacing=1.1, borderaxespad=0.2,
    )  # fmt: skip


def _short(value: float) -> str:
    """Three significant digits without an exponent."""
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.4f}"
