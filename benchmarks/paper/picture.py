"""The picture of an experiment: ratios with their intervals by cell, or values without ratios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from benchmarks.paper.experiment import Experiment
from benchmarks.summary import Row
from hopper.display.palette import COLOURS

PICTURE_FILE: Final = "{}.svg"
"""by an experiment's name"""
_COLOURS: Final = [colour.light for name, colour in COLOURS.items() if name not in ("ink", "pale")]


def draw(experiment: Experiment, rows: Sequence[Row], path: Path) -> None:
    """Draw the first reported measure that has ratios, a panel for each baseline; if none has, a
    panel for each measure."""
    with_ratios = [row for row in rows if row.ratio is not None]
    if with_ratios:
        shown = [row for row in with_ratios if row.measure == with_ratios[0].measure]
        groups = [
            (
                f"{shown[0].measure}: times fewer than {b}",
                [row for row in shown if row.baseline == b],
            )
            for b in dict.fromkeys(row.baseline for row in shown)
        ]
    else:
        measures = dict.fromkeys(row.measure for row in rows)
        groups = [(m, [row for row in rows if row.measure == m]) for m in measures]
    cells = list(dict.fromkeys(row.cell for row in rows))
    sides = list(dict.fromkeys(row.side for _, group in groups for row in group))
    height = 1.2 + 0.16 * len(cells) * (1 + len(sides))
    figure = Figure(figsize=(9, height * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), squeeze=False)[:, 0]
    for axis, (title, group) in zip(axes, groups, strict=True):
        for index, side in enumerate(sides):
            of_side = [row for row in group if row.side == side]
            offset = 0.8 * ((index + 0.5) / len(sides) - 0.5)
            places = [cells.index(row.cell) + offset for row in of_side]
            values = [row.ratio or row.median or 0.0 for row in of_side]
            pairs = list(zip(values, of_side, strict=True))
            errors = [
                [v - (v if row.low is None else row.low) for v, row in pairs],
                [(v if row.high is None else row.high) - v for v, row in pairs],
            ]
            colour = _COLOURS[index % len(_COLOURS)]
            axis.errorbar(values, places, xerr=errors, fmt="o", capsize=2, color=colour, label=side)
        if with_ratios:
            axis.axvline(1, color="grey", linewidth=0.8)
            axis.set_xscale("log")
        axis.set_yticks(range(len(cells)), cells)
        axis.set_ylim(len(cells) - 0.5, -0.5)
        axis.set_title(title, fontsize=9, loc="left")
        axis.grid(axis="x", alpha=0.3)
    axes[0].legend(fontsize=8, loc="best")
    figure.suptitle(f"{experiment.name}: {experiment.title}", fontsize=10)
    figure.savefig(path, metadata={"Date": None})
