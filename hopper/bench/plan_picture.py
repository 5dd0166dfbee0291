"""The picture of a plan: seconds and bytes of an epoch by engine and by number of servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hopper.bench.picture import CAUSE_COLOURS, STAGE_COLOURS
from hopper.bench.report.units import things
from hopper.palette import engine_colours, hex_of
from hopper.rehearsal.cluster_plan import ClusterPlan
from hopper.rehearsal.estimate import Estimate
from hopper.rehearsal.growth import Growth, Point
from hopper.run_log import STAGES
from hopper.traffic import CAUSES

_MIB: Final = 2**20
_ABOVE: Final[dict[str, Any]] = {
    "fontsize": 9, "loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False,
    "columnspacing": 1.0,
}  # fmt: skip


def draw_plan(plan: ClusterPlan, path: Path) -> None:
    """Write the picture. The ending of the path sets the format."""
    trained = [estimate for estimate in plan.estimates if not estimate.refused][::-1]
    rows = 2 if plan.growth else 1
    figure = Figure(figsize=(12, (1.6 + 0.42 * len(trained)) * rows + 0.6 * rows), dpi=150)
    figure.set_layout_engine("constrained")
    FigureCanvasAgg(figure)
    cluster = plan.cluster
    rate = cluster.bits_per_second
    figure.suptitle(
        f"{things(cluster.servers, 'server')}, each with "
        f"{things(cluster.ranks_per_server, 'rank')} and {cluster.cores:g} "
        f"{'core' if cluster.cores == 1 else 'cores'}, links of "
        f"{'any rate' if rate is None else f'{rate / 1e9:g} Gbit/s'}"
    )
    axes = figure.subplots(rows, 2, squeeze=False)
    _draw_seconds(axes[0][0], trained)
    _draw_bytes(axes[0][1], trained)
    if plan.growth:
        _draw_growth(axes[1][0], plan.growth, lambda point: point.epoch_seconds, "s an epoch")
        _draw_growth(axes[1][1], plan.growth, lambda point: point.bytes / _MIB, "MiB an epoch")
    figure.savefig(path)


def _draw_seconds(axes: Axes, trained: Sequence[Estimate]) -> None:
    """Draw a bar for the epoch, and beside it a bar for the stages, some of which overlap."""
    places = range(len(trained))
    axes.barh(
        [row + 0.2 for row in places], [estimate.epoch_seconds for estimate in trained], 0.36,
        color=hex_of("dim"), label="epoch",
    )  # fmt: skip
    left = [0.0] * len(trained)
    for stage in STAGES:
        widths = [(estimate.stage_seconds or {}).get(stage, 0.0) for estimate in trained]
        axes.barh(
            [place - 0.2 for place in places], widths, 0.36, left=left, color=STAGE_COLOURS[stage],
            label=stage,
        )  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(places, [row.engine for row in trained])
    axes.set_xlabel("s an epoch, and stages of a rank, some of which overlap")
    axes.legend(**_ABOVE, ncols=4)


def _draw_bytes(axes: Axes, trained: Sequence[Estimate]) -> None:
    left = [0.0] * len(trained)
    for cause in CAUSES:
        widths = [(engine.bytes or {}).get(cause, 0) / _MIB for engine in trained]
        axes.barh(
            range(len(trained)), widths, 0.6, left=left, color=CAUSE_COLOURS[cause], label=cause
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(trained)), [engine.engine for engine in trained])
    axes.set_xlabel("MiB between servers, an epoch")
    axes.legend(**_ABOVE, ncols=3)


def _draw_growth(
    axes: Axes, growth: Sequence[Growth], value: Callable[[Point], float], label: str
) -> None:
    """Draw a line for each engine. The marker of a rehearsed point is filled."""
    colours = engine_colours([engine_growth.engine for engine_growth in growth])
    for engine_growth in growth:
        colour = colours[engine_growth.engine]
        values = [value(point) for point in engine_growth.points]
        servers = [point.servers for point in engine_growth.points]
        axes.plot(servers, values, color=colour, lw=1.8, label=engine_growth.engine)
        marker_colours = [colour if point.rehearsed else "white" for point in engine_growth.points]
        axes.scatter(servers, values, c=marker_colours, edgecolors=colour, s=30, zorder=3)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("log")
    axes.set_xlabel("servers (filled: rehearsed; hollow: extrapolated)")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9, ncols=2)
