"""Shows an iteration's time steps as a table of text and as a picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from hopper.display.palette import GRID, SOFT_TEXT, TEXT, series, text_on
from hopper.micrograph.merge import TimeSteps
from hopper.migrate.schedule import Visit, visits

Spots = dict[tuple[int, int], tuple[float, float, float]]
"""by model and time step, where its block begins and ends, and in which row"""

_CAPTION: Final = "Width: roots, as a share of the busiest rank's in the step. Grey: waiting."
_ROOM_FOR_WORDS: Final = 0.36
_ROOM_FOR_NUMBERS: Final = 0.13


def tell_schedule(steps: TimeSteps) -> list[list[str]]:
    """Return, as [ranks][steps], the models that train: ``m2 (37)`` for 37 roots of model 2."""
    return [
        [
            ", ".join(
                f"m{model} ({steps.groups[model][visit.step].size})" for model in visit.models
            )
            for visit in timeline
        ]
        for timeline in _timelines(steps)
    ]


def draw_schedule(steps: TimeSteps, path: Path | str, title: str) -> None:
    """Write a PNG with a row per rank, a column per time step, and a block per model.

    Arrows show where models go. A block's width is its number of roots relative to the rank with
    the most roots in the step. The remainder of a rank's column is waiting.
    """
    timelines = _timelines(steps)
    size = max(5.5, 1.6 + 2.1 * steps.count), 1.7 + 0.75 * len(timelines)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.add_subplot()
    spots: Spots = {}
    for step in range(steps.count):
        load = [
            sum(steps.groups[model][step].size for model in timeline[step].models)
            for timeline in timelines
        ]
        for rank, timeline in enumerate(timelines):
            axes.barh(rank, 0.9, left=step, height=0.6, color=GRID, zorder=1)
            _draw_visit(axes, steps, timeline[step], rank, max(1, *load), spots)
    for model in range(len(timelines)):
        for step in range(1, steps.count):
            # From the right edge of a block to the left one of the next, clear of their words.
            _, leaves, row = spots[model, step - 1]
            arrives, _, next_row = spots[model, step]
            axes.annotate(
                "", (arrives, next_row), (leaves, row), zorder=3,
                arrowprops={"arrowstyle": "->", "color": TEXT, "lw": 1.2, "shrinkA": 1,
                            "shrinkB": 1},
            )  # fmt: skip
    axes.set_yticks(range(len(timelines)), [f"rank {rank}" for rank in range(len(timelines))])
    axes.set_xticks(np.arange(steps.count) + 0.45, [f"time step {s}" for s in range(steps.count)])
    axes.set_xlim(-0.05, steps.count)
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=10)
    axes.set_xlabel(_CAPTION, fontsize=9, color=SOFT_TEXT, loc="left")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    unfinished = f"{path}.part"
    figure.savefig(unfinished, format="png")
    os.replace(unfinished, path)


def _draw_visit(
    axes: Any,
    steps: TimeSteps,
    visit: Visit,
    rank: int,
    most: int,
    spots: Spots,
) -> None:
    left = float(visit.step)
    for model in visit.models:
        roots = steps.groups[model][visit.step].size
        width = 0.9 * roots / most
        colour = series(model)
        axes.barh(rank, width, left=left, height=0.6, color=colour, edgecolor="white", zorder=2)
        spots[model, visit.step] = (left, left + width, rank)
        axes.text(left + width / 2, rank, _label(model, roots, width), ha="center", va="center",
                  fontsize=9, color=text_on(colour), zorder=4)  # fmt: skip
        left += width


def _label(model: int, roots: int, width: float) -> str:
    """Return what there is room for in a block of a width, a column being 1 wide."""
    if width >= _ROOM_FOR_WORDS:
        return f"model {model}\n{roots} roots"
    return f"m{model}\n{roots}" if width >= _ROOM_FOR_NUMBERS else ""


def _timelines(steps: TimeSteps) -> list[list[Visit]]:
    return [visits(steps.ranks, rank) for rank in range(steps.ranks.shape[0])]
