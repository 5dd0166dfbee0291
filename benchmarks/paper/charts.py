"""Pictures of experiments, made from result.json alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.paper.experiment import Result
from hopper.bench.picture import STAGE_COLOURS
from hopper.palette import ENGINES, GRID, SOFT_TEXT, engine_colours, hex_of

COLOURS: Final = tuple(
    hex_of(name) for name in ("grey", "orange", "sky", "blue", "green", "red", "pink")
)
DOTS_PER_INCH: Final = 150
_MOST_ABREAST: Final = 2
_GREY: Final = SOFT_TEXT


def draw_speed(result: Result, path: Path) -> None:
    """Draw every cell's ratios as dots with their intervals. The line at 1 is the baseline."""
    pairs = [(entry["role"], entry["baseline"]) for entry in result["summary"]]
    baselines = list(dict.fromkeys(baseline for _, baseline in pairs))
    cells = result["cells"]
    most = max([entry["most"] or 0.0 for entry in result["summary"]], default=0.0)
    height = 2.2 + 0.17 * len(cells) * max(2, len(pairs) / len(baselines))
    figure, axes = panels(len(baselines), 5.5, height, sharey=True)
    for axis, baseline in zip(axes, baselines, strict=True):
        roles = [role for role, base in pairs if base == baseline]
        for index, role in enumerate(roles):
            _dots(axis, cells, (role, baseline), (index + 0.5) / len(roles) - 0.5)
        axis.axvline(1.0, color=_GREY, linewidth=1)
        axis.set_yticks(range(len(cells)), [cell["name"] for cell in cells])
        axis.set_ylim(len(cells) - 0.5, -0.5)
        # A wide interval runs out of the picture rather than hiding the others.
        axis.set_xlim(0, 1.3 * max(most, 1.5))
        finish(axis, f"times faster than {baseline}", "x")
    legend_above(figure, axes)
    save(figure, result, path)


def _dots(
    axes: Axes,
    cells: Sequence[Mapping[str, Any]],
    pair: tuple[str, str],
    shift: float,
) -> None:
    xs, ys, low, high = [], [], [], []
    for row, cell in enumerate(cells):
        for ratio in cell["ratios"]:
            if (ratio["role"], ratio["baseline"]) == pair and ratio["mean"] is not None:
                mean = ratio["mean"]
                xs.append(mean)
                ys.append(row + 0.7 * shift)
                low.append(mean - (ratio["low"] if ratio["low"] is not None else mean))
                high.append((ratio["high"] if ratio["high"] is not None else mean) - mean)
    axes.errorbar(
        xs, ys, xerr=[low, high], fmt="o", markersize=4, linewidth=1, capsize=2, label=pair[0],
        color=colour_of(pair[0], cells[0]),
    )  # fmt: skip


def draw_trend(axis: str, label: str) -> Callable[[Result, Path], None]:
    """Return a function that draws epoch seconds and ratios along one axis of the cells."""

    def draw(result: Result, path: Path) -> None:
        figure, (left, right) = canvas(2, 12, 4.6)
        cells = result["cells"]
        keys = [key for key in ("graph", "model", "hidden") if key != axis]
        groups = list(dict.fromkeys(tuple(cell[key] for key in keys) for cell in cells))
        styles = ("-", "--", ":", "-.")
        for index, group in enumerate(groups):
            group_cells = [cell for cell in cells if tuple(cell[key] for key in keys) == group]
            group_cells.sort(key=lambda cell: cell[axis])
            style = styles[index % len(styles)]
            prefix = f"{' '.join(map(str, group))}: " if len(groups) > 1 else ""
            xs = [cell[axis] for cell in group_cells]
            for role in group_cells[0]["sides"]:
                seconds = [_per_iteration(cell, role) for cell in group_cells]
                left.plot(
                    xs,
                    seconds,
                    style,
                    marker="o",
                    color=colour_of(role, group_cells[0]),
                    label=prefix + role,
                )
            _ratio_lines(right, group_cells, axis, style, prefix)
        right.axhline(1.0, color=_GREY, linewidth=1)
        finish(left, "milliseconds an iteration", "both", x_label=label)
        finish(
            right, f"times faster than {cells[0]['ratios'][0]['baseline']}", "both", x_label=label
        )
        ticks = sorted({cell[axis] for cell in cells})
        for panel in (left, right):
            panel.set_xscale("log", base=2)
            panel.set_xticks(ticks, [str(tick) for tick in ticks])
            panel.set_ylim(bottom=0)
        legend_above(figure, [left])
        save(figure, result, path)

    return draw


def _per_iteration(cell: Mapping[str, Any], role: str) -> float:
    side = cell["sides"][role]
    return 1000 * float(side["seconds"]) / float(side["iterations"])


def _ratio_lines(
    axes: Axes, cells: Sequence[Mapping[str, Any]], axis: str, style: str, prefix: str
) -> None:
    for index, pair in enumerate(cells[0]["ratios"]):
        points = [(cell[axis], cell["ratios"][index]) for cell in cells]
        points = [(x, ratio) for x, ratio in points if ratio["mean"] is not None]
        if not points:
            continue
        xs = [x for x, _ in points]
        means = [ratio["mean"] for _, ratio in points]
        low = [r["mean"] - (r["low"] if r["low"] is not None else r["mean"]) for _, r in points]
        high = [(r["high"] if r["high"] is not None else r["mean"]) - r["mean"] for _, r in points]
        axes.errorbar(
            xs, means, yerr=[low, high], fmt=style, marker="o", capsize=2,
            color=colour_of(pair["role"], cells[0]), label=prefix + pair["role"],
        )  # fmt: skip


def draw_stages(result: Result, path: Path) -> None:
    """Draw the shares of a rank's time by stage, with a bar for each cell."""
    cells = result["cells"]
    figure, (axes,) = canvas(1, 10, 1.6 + 0.4 * len(cells))
    starts = [0.0] * len(cells)
    for stage, colour in STAGE_COLOURS.items():
        shares = []
        for cell in cells:
            seconds = next(iter(cell["sides"].values()))["stage_seconds"]
            shares.append(100 * seconds[stage] / (sum(seconds.values()) or 1.0))
        if any(share >= 0.05 for share in shares):
            axes.barh(range(len(cells)), shares, left=starts, color=colour, label=stage)
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    axes.set_yticks(range(len(cells)), [cell["name"] for cell in cells])
    axes.invert_yaxis()
    finish(axes, "share of a rank's time, per cent", "x")
    legend_above(figure, [axes])
    save(figure, result, path)


def draw_bars(
    label: str, measure: Callable[[Mapping[str, Any]], float | None]
) -> Callable[[Result, Path], None]:
    """Return a function that draws one bar for each cell on a logarithmic axis (base 2)."""

    def draw(result: Result, path: Path) -> None:
        cells = result["cells"]
        figure, (axes,) = canvas(1, 10, 1.4 + 0.35 * len(cells))
        values = [measure(cell) or 0.0 for cell in cells]
        axes.barh(range(len(cells)), values, color=COLOURS[3])
        axes.set_xscale("log", base=2)
        axes.set_yticks(range(len(cells)), [cell["name"] for cell in cells])
        axes.invert_yaxis()
        finish(axes, label, "x")
        save(figure, result, path)

    return draw


def draw_epochs(result: Result, path: Path) -> None:
    """Draw seconds of adaptive merging (mean of rounds) and its time steps, by epoch."""
    cells = result["cells"]
    figure, axes = panels(len(cells), 6.5, 4.4)
    for axis, cell in zip(axes, cells, strict=True):
        epochs = cell["sides"]["All"]["epochs"]
        seconds = [fmean(epoch["seconds"]) for epoch in epochs]
        axis.bar(range(len(seconds)), seconds, color=COLOURS[2])
        _cut_warm_up(axis, seconds)
        finish(axis, f"{cell['name']}: seconds an epoch", "y", x_label="epoch")
        steps = axis.twinx()
        for index in range(len(epochs[0]["decisions"])):
            counts = [cell["servers"] - e["decisions"][index].get("merge", 0) for e in epochs]
            steps.step(
                range(len(counts)), counts, where="mid", color=COLOURS[5], marker="o",
                alpha=0.5 + 0.5 / len(epochs[0]["decisions"]),
            )  # fmt: skip
        steps.set_ylim(0, cell["servers"] + 0.5)
        steps.set_yticks(range(cell["servers"] + 1))
        steps.tick_params(labelsize=8)
        steps.set_ylabel("time steps an iteration (a line a round)", color=COLOURS[5], fontsize=9)
    save(figure, result, path)


def _cut_warm_up(axes: Axes, seconds: Sequence[float]) -> None:
    """Cut off the first epoch if it would flatten the others, and write its value."""
    top = 1.3 * max(seconds[1:], default=0.0)
    if 0 < top < seconds[0]:
        axes.set_ylim(0, top)
        axes.text(0, 0.97 * top, f"{seconds[0]:.2g} s", ha="center", va="top", fontsize=8)


def colour_of(role: str, cell: Mapping[str, Any]) -> str:
    """Return the colour of a role's engine. Further roles of the same engine in a cell are
    paler."""
    labels = {role: str(side.get("label", role)) for role, side in cell["sides"].items()}
    colours = engine_colours(list(labels.values()))
    are_engines = all(label.partition(":")[0] in ENGINES for label in labels.values())
    if are_engines and len(set(colours.values())) == len(labels):
        return colours[labels[role]]
    return COLOURS[list(labels).index(role) % len(COLOURS)]


def legend_above(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend above the figure, with every label of its axes once."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(
            handles.values(), handles.keys(), loc="outside upper center",
            ncols=min(6, len(handles)), frameon=False, fontsize=9,
        )  # fmt: skip


def canvas(
    columns: int, width: float, height: float, rows: int = 1, **words: Any
) -> tuple[Figure, list[Axes]]:
    """Make an empty figure with a grid of axes."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
    figure.set_layout_engine("constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **words).flat)


def panels(count: int, width: float, height: float, **words: Any) -> tuple[Figure, list[Axes]]:
    """Make an empty figure with a number of axes of this size, at most two of them abreast.

    A picture with more abreast cannot be read at the width of a page.
    """
    columns = min(_MOST_ABREAST, count)
    rows = -(-count // columns)
    figure, axes = canvas(columns, width * columns, height * rows, rows, **words)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def finish(axes: Axes, title: str, grid: str, x_label: str = "") -> None:
    """Style axes as all pictures have them: without a frame, with a light grid."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    if x_label:
        axes.set_xlabel(x_label, fontsize=9)
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="both" if grid == "both" else "x" if grid == "x" else "y", color=GRID)
    axes.set_axisbelow(True)


def save(figure: Figure, result: Result, path: Path) -> None:
    """Write a picture as lossless WebP, a third of PNG's size, with the setting below it. It gets
    its name when it is whole."""
    machine = result["machine"]
    figure.supxlabel(
        f"{result['experiment']}, {result['date']}: {machine['cpu']}, {machine['cores']} cores",
        fontsize=7,
        color=_GREY,
    )
    unfinished = path.with_name(path.name + ".unfinished")
    figure.savefig(unfinished, format="webp", pil_kwargs={"lossless": True})
    unfinished.replace(path)
