#!/usr/bin/env python
"""Draw docs/pictures: a picture of every engine, and two for the README.

usage: python scripts/draw_engines.py

A picture of an engine has two servers and an arrow for each thing that an iteration sends between
them. Widths of arrows are an order, not measured. ``measured.svg`` has seconds and bytes of four
systems, from the results.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.summary import Row, read  # noqa: E402

PICTURES: Final = ROOT / "docs" / "pictures"
RESULTS: Final = ROOT / "benchmarks" / "results" / "amd-epyc-2-cores" / "summary.csv"
SYSTEMS: Final = {
    "DistDGL 1.1.3": "DistDGL",
    "model-centric": "model_centric",
    "zero-hop": "zero_hop",
    "cooperative": "cooperative",
}
GRAPHS: Final = {"scattered-sage-16": "scattered", "products-like-sage-16": "products-like"}
FEATURES, MODEL, HIDDEN, GRADIENTS = "#1f6fb4", "#d9660a", "#7a52a8", "#555555"
WIDTH: Final = 7.2
HEIGHT: Final = 1.75
_BOX: Final = 2.3
_SETTINGS: Final = {
    "svg.hashsalt": "hopper",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
}


@dataclass(frozen=True)
class Arrow:
    """What travels both ways between two servers."""

    label: str
    color: str
    width: float


@dataclass(frozen=True)
class Engine:
    """What a server stores, what its rank trains, and what it exchanges with others."""

    name: str
    work: str
    arrows: tuple[Arrow, ...]
    stored: str = "features"


_SUM: Final = Arrow("gradients", GRADIENTS, 1.5)
_FEW: Final = Arrow("few feature rows", FEATURES, 2)
ENGINES: Final = (
    Engine("model_centric", "roots from anywhere", (Arrow("feature rows", FEATURES, 7), _SUM)),
    Engine("hop", "roots of this server,\none model after the other",
           (_FEW, Arrow("models", MODEL, 3.5), _SUM)),
    Engine("zero_hop", "all roots of this server", (_FEW, _SUM)),
    Engine("cooperative", "every node of this server,\nonce",
           (Arrow("hidden rows and their gradients", HIDDEN, 3), _SUM)),
    Engine("raf", "relations of this server",
           (Arrow("partial aggregations of roots", HIDDEN, 2), _SUM), stored="relations"),
    Engine("naive", "first-layer rows of this server,\nfor every model in turn",
           (Arrow("models with partial sums", MODEL, 6), _SUM)),
    Engine("p3", "first layer of all batches,\nwith these columns",
           (Arrow("partial sums of the first layer", HIDDEN, 3.5), _SUM), stored="some columns"),
    Engine("neutronstar", "every node of this server,\nand others computed again",
           (Arrow("feature rows, once a run", FEATURES, 2), Arrow("hidden rows", HIDDEN, 2.5),
            _SUM)),
    Engine("locality", "batches of this server's roots\n(approximate)", (_FEW, _SUM)),
)  # fmt: skip
IDEA: Final = ("model_centric", "hop", "zero_hop", "cooperative")


def draw_picture(engines: Sequence[Engine], titles: bool) -> str:
    """Draw engines below each other.

    Parameters
    ----------
    titles: whether each has its name above it.

    Returns
    -------
    The picture as SVG; the same every time.
    """
    matplotlib.use("Agg")
    step = HEIGHT + (0.3 if titles else 0.0)
    with matplotlib.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(figsize=(WIDTH, step * len(engines)))
        figure.subplots_adjust(0, 0, 1, 1)
        axes.set(xlim=(0, WIDTH), ylim=(-step * len(engines), 0))
        axes.axis("off")
        for place, engine in enumerate(engines):
            top = -step * place
            if titles:
                axes.text(0.1, top - 0.24, engine.name, weight="bold", size=10.5)
                top -= 0.3
            _draw_engine(axes, engine, top)
        return _as_svg(figure)


def _as_svg(figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", facecolor="white", metadata={"Date": None})
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _draw_engine(axes: Any, engine: Engine, top: float) -> None:
    for server, left in enumerate((0.1, WIDTH - _BOX - 0.1)):
        _draw_server(axes, engine, server, left, top - 0.1)
    begin, end = _BOX + 0.2, WIDTH - _BOX - 0.2
    gap = (HEIGHT - 0.2) / len(engine.arrows)
    for place, arrow in enumerate(engine.arrows):
        y = top - 0.1 - gap * (place + 0.62)
        head = f"<|-|>,head_length={4 + arrow.width / 2},head_width={2.5 + arrow.width / 2}"
        axes.add_patch(
            FancyArrowPatch(
                (begin, y),
                (end, y),
                arrowstyle=head,
                linewidth=arrow.width,
                color=arrow.color,
                shrinkA=0,
                shrinkB=0,
                mutation_scale=1,
            )
        )
        axes.text((begin + end) / 2, y + 0.04 + arrow.width / 110, arrow.label,
                  ha="center", va="bottom", color=arrow.color)  # fmt: skip


def _draw_server(axes: Any, engine: Engine, server: int, left: float, top: float) -> None:
    height = HEIGHT - 0.2
    frame = FancyBboxPatch(
        (left, top - height), _BOX, height, boxstyle="round,pad=0,rounding_size=0.08",
        facecolor="#f5f5f5", edgecolor="#999999",
    )  # fmt: skip
    axes.add_patch(frame)
    axes.text(left + 0.1, top - 0.2, f"server {server}", color="#333333", weight="bold")
    for row in range(4):
        for column in range(5):
            corner = (left + 0.15 + 0.15 * column, top - 0.45 - 0.13 * row)
            axes.add_patch(Rectangle(corner, 0.13, 0.11, facecolor=FEATURES, alpha=0.75))
    axes.text(left + 0.52, top - 1.03, engine.stored, ha="center", color=FEATURES)
    model = FancyBboxPatch(
        (left + 1.3, top - 0.82), 0.8, 0.42, boxstyle="round,pad=0,rounding_size=0.1",
        facecolor="#fbe3d0", edgecolor=MODEL,
    )  # fmt: skip
    axes.add_patch(model)
    axes.text(left + 1.7, top - 0.61, f"model {server}", ha="center", va="center", color=MODEL)
    axes.text(left + _BOX / 2, top - 1.3, engine.work, ha="center", va="center", color="#333333",
              linespacing=1.1)  # fmt: skip


def draw_measured(rows: Sequence[Row]) -> str:
    """Return a picture of the seconds and bytes of an epoch, by system and graph."""
    lines = {
        (row.cell, row.side): row
        for row in rows
        if row.experiment == "baselines" and row.measure == "epoch seconds"
    }
    with pyplot.rc_context(_SETTINGS):
        figure, all_axes = pyplot.subplots(2, 2, figsize=(WIDTH, 2.7), sharey="row")
        for (cell, graph), row_of_axes in zip(GRAPHS.items(), all_axes, strict=True):
            shown = [lines[cell, side] for side in SYSTEMS]
            seconds = [row.median or 0.0 for row in shown]
            megabytes = [(row.bytes or 0) / 1e6 for row in shown]
            units = ("seconds", "MB between servers")
            for axes, values, unit in zip(row_of_axes, (seconds, megabytes), units, strict=True):
                colors = ["#999999", "#999999", FEATURES, HIDDEN]
                bars = axes.barh([*SYSTEMS.values()], values, color=colors)
                axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
                axes.set_title(f"{graph}: {unit}, an epoch", loc="left", fontsize=8.5)
                axes.set_xlim(0, 1.18 * max(values))
                axes.set_xticks([])
                axes.spines[["top", "right", "bottom"]].set_visible(False)
            row_of_axes[0].invert_yaxis()
        figure.tight_layout()
        return _as_svg(figure)


def make_pictures() -> dict[str, str]:
    """All pictures by the names of their files."""
    pictures = {f"{each.name}.svg": draw_picture([each], titles=False) for each in ENGINES}
    by_name = {each.name: each for each in ENGINES}
    pictures["idea.svg"] = draw_picture([by_name[name] for name in IDEA], titles=True)
    pictures["measured.svg"] = draw_measured(read(RESULTS))
    return pictures


def main() -> None:
    """Write the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, text in make_pictures().items():
        (PICTURES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
