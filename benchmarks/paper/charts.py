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
_GREY: Final = SOFT_TEXT


def draw_speed(result: Result, path: Path) -> None:
    """Every cell's ratios as dots with their intervals; the line at 1 is the baseline."""
    pairs = [(each["role"], each["baseline"]) for each in result["summary"]]
    baselines = list(dict.fromkeys(baseline for _, baseline in pairs))
    cells = result["cells"]
    most = max([each["most"] or 0.0 for each in result["summary"]], default=0.0)
    height = 2.2 + 0.17 * len(cells) * max(2, len(pairs) / len(baselines))
    figure, axes = canvas(len(baselines), 4.6 * len(baselines) + 1.8, height, sharey=True)
    for place, baseline in zip(axes, baselines, strict=True):
        roles = [role for role, base in pairs if base == baseline]
        for index, role in enumerate(roles):
            _dots(place, cells, (role, baseline), (index + 0.5) / len(roles) - 0.5)
        place.axvline(1.0, color=_GREY, linewidth=1)
        place.set_yticks(range(len(cells)), [cell["name"] for cell in cells])
        place.set_ylim(len(cells) - 0.5, -0.5)
        # A wide interval runs out of the picture rather than hiding the others.
        place.set_xlim(0, 1.3 * max(most, 1.5))
        finish(place, f"times faster than {baseline}", "x")
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
        for each in cell["ratios"]:
            if (each["role"], each["baseline"]) == pair and each["mean"] is not None:
                mean = each["mean"]
                xs.append(mean)
                ys.append(row + 0.7 * shift)
                low.append(mean - (each["low"] if each["low"] is not None else mean))
                high.append((each["high"] if each["high"] is not None else mean) - mean)
    axes.errorbar(
        xs, ys, xerr=[low, high], fmt="o", markersize=4, linewidth=1, capsize=2, label=pair[0],
        color=colour_of(pair[0], cells[0]),
    )  # fmt: skip


def draw_trend(axis: str, label: str) -> Callable[[Result, Path], None]:
    """Makes a picture of epoch seconds and ratios along one axis of the cells."""

    def draw(result: Result, path: Path) -> None:
        figure, (left, right) = canvas(2, 12, 4.6)
        cells = result["cells"]
        keys = [each for each in ("graph", "model", "hidden") if each != axis]
        groups = list(dict.fromkeys(tuple(cell[each] for each in keys) for cell in cells))
        styles = ("-", "--", ":", "-.")
        for which, group in enumerate(groups):
            own = [cell for cell in cells if tuple(cell[each] for each in keys) == group]
            own.sort(key=lambda cell: cell[axis])
            style = styles[which % len(styles)]
            prefix = f"{' '.join(map(str, group))}: " if len(groups) > 1 else ""
            xs = [cell[axis] for cell in own]
            for role in own[0]["sides"]:
                seconds = [_per_iteration(cell, role) for cell in own]
                left.plot(
                    xs,
                    seconds,
                    style,
                    marker="o",
                    color=colour_of(role, own[0]),
                    label=prefix + role,
                )
            _ratio_lines(right, own, axis, style, prefix)
        right.axhline(1.0, color=_GREY, linewidth=1)
        finish(left, "milliseconds an iteration", "both", x_label=label)
        finish(
            right, f"times faster than {cells[0]['ratios'][0]['baseline']}", "both", x_label=label
        )
        ticks = sorted({cell[axis] for cell in cells})
        for place in (left, right):
            place.set_xscale("log", base=2)
            place.set_xticks(ticks, [str(tick) for tick in ticks])
            place.set_ylim(bottom=0)
        legend_above(figure, [left])
        save(figure, result, path)

    return draw


def _per_iteration(cell: Mapping[str, Any], role: str) -> float:
    side = cell["sides"][role]
    return 1000 * float(side["seconds"]) / float(side["iterations"])


def _ratio_lines(
    axes: Axes, cells: Sequence[Mapping[str, Any]], axis: str, style: str, prefix: str
) -> None:
    for place, pair in enumerate(cells[0]["ratios"]):
        told = [(cell[axis], cell["ratios"][place]) for cell in cells]
        told = [(x, ratio) for x, ratio in told if ratio["mean"] is not None]
        if not told:
            continue
        xs = [x for x, _ in told]
        means = [ratio["mean"] for _, ratio in told]
        low = [r["mean"] - (r["low"] if r["low"] is not None else r["mean"]) for _, r in told]
        high = [(r["high"] if r["high"] is not None else r["mean"]) - r["mean"] for _, r in told]
        axes.errorbar(
            xs, means, yerr=[low, high], fmt=style, marker="o", capsize=2,
            color=colour_of(pair["role"], cells[0]), label=prefix + pair["role"],
        )  # fmt: skip


def draw_stages(result: Result, path: Path) -> None:
    """Shares of a rank's time by stage, a bar a cell."""
    cells = result["cells"]
    figure, (axes,) = canvas(1, 10, 1.6 + 0.4 * len(cells))
    left = [0.0] * len(cells)
    for stage, colour in STAGE_COLOURS.items():
        shares = []
        for cell in cells:
            seconds = next(iter(cell["sides"].values()))["stage_seconds"]
            shares.append(100 * seconds[stage] / (sum(seconds.values()) or 1.0))
        if any(share >= 0.05 for share in shares):
            axes.barh(range(len(cells)), shares, left=left, color=colour, label=stage)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(cells)), [cell["name"] for cell in cells])
    axes.invert_yaxis()
    finish(axes, "share of a rank's time, per cent", "x")
    legend_above(figure, [axes])
    save(figure, result, path)


def draw_bars(
    label: str, measure: Callable[[Mapping[str, Any]], float | None]
) -> Callable[[Result, Path], None]:
    """Makes a picture of one bar a cell on a logarithmic axis (base 2)."""

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
    """Epoch by epoch: seconds of adaptive merging (mean of rounds) and its time steps."""
    cells = result["cells"]
    figure, axes = canvas(len(cells), 6.5 * len(cells), 4.4)
    for place, cell in zip(axes, cells, strict=True):
        epochs = cell["sides"]["All"]["epochs"]
        seconds = [fmean(epoch["seconds"]) for epoch in epochs]
        place.bar(range(len(seconds)), seconds, color=COLOURS[2])
        _cut_warm_up(place, seconds)
        finish(place, f"{cell['name']}: seconds an epoch", "y", x_label="epoch")
        steps = place.twinx()
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
    """Let the first epoch run out of the picture where it would flatten the rest; tell it."""
    top = 1.3 * max(seconds[1:], default=0.0)
    if 0 < top < seconds[0]:
        axes.set_ylim(0, top)
        axes.text(0, 0.97 * top, f"{seconds[0]:.2g} s", ha="center", va="top", fontsize=8)


def colour_of(role: str, cell: Mapping[str, Any]) -> str:
    """The colour of a role's engine, paler for each further role of the same engine in a cell."""
    labels = {each: str(side.get("label", each)) for each, side in cell["sides"].items()}
    colours = engine_colours(list(labels.values()))
    are_engines = all(label.partition(":")[0] in ENGINES for label in labels.values())
    if are_engines and len(set(colours.values())) == len(labels):
        return colours[labels[role]]
    return COLOURS[list(labels).index(role) % len(COLOURS)]


def legend_above(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend over the whole figure: every label of some axes once."""
    found: dict[str, Any] = {}
    for place in axes:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(
            found.values(), found.keys(), loc="outside upper center", ncols=min(6, len(found)),
            frameon=False, fontsize=9,
        )  # fmt: skip


def canvas(
    columns: int, width: float, height: float, rows: int = 1, **words: Any
) -> tuple[Figure, list[Axes]]:
    """An empty figure with some places beside each other, row by row."""
    figure = Figure(figsize=(width, height), dpi=150)
    figure.set_layout_engine("constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **words).flat)


def finish(axes: Axes, title: str, grid: str, x_label: str = "") -> None:
    """The house's axes: no frame, a light grid."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    if x_label:
        axes.set_xlabel(x_label, fontsize=9)
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="both" if grid == "both" else "x" if grid == "x" else "y", color=GRID)
    axes.set_axisbelow(True)


def save(figure: Figure, result: Result, path: Path) -> None:
    """Write as lossless WebP, a third of PNG, under a temporary name, then rename; the setting
    stands below."""
    machine = result["machine"]
    figure.supxlabel(
        f"{result['experiment']}, {result['date']}: {machine['cpu']}, {machine['cores']} cores",
        fontsize=7,
        color=_GREY,
    )
    unfinished = path.with_name(path.name + ".unfinished")
    figure.savefig(unfinished, format="webp", pil_kwargs={"lossless": True})
    unfinished.replace(path)
