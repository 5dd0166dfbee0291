"""Accuracy of engines on the same seeds (HopGNN, Table 3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from scipy import stats

from benchmarks.paper.cells import Cell
from benchmarks.paper.charts import colour_of, finish, panels, save
from benchmarks.paper.each_cell import graph_size, make_run_folder, run_cells
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.grid import CONFIGS_FOLDER, Job, describe_cell
from benchmarks.paper.toml import write_toml
from hopper.bench.train_process import train_in_process
from hopper.config import Config, make_config
from hopper.paired_ratio import CONFIDENCE
from hopper.whole_files import write_text

SAME: Final = 0.001
"""a drop within this is "the same" (Table 3)"""
LEARNING_RATE: Final = 0.01
_RUN_SECONDS: Final = 3600.0


def count_trainings(job: Job) -> int:
    """Count the training runs of a job."""
    return len(job.cells) * job.options.seeds * len(job.experiment.sides)


def run_accuracies(job: Job) -> Iterator[dict[str, Any]]:
    """Train every side with every seed, on loopback.

    Yields
    ------
    Cells of result.json: as in the grid, with ``runs`` (test accuracy by side, a seed each) and
    ``sides`` (mean, spread, drop).
    """
    for record in run_cells(job, _train_cell):
        yield _cell_entry(record)


def _train_cell(job: Job, cell: Cell) -> dict[str, Any]:
    graph = job.materials.parts(cell)
    values = accuracy_values(cell, str(graph.path), job.epochs)
    config = make_config(values, job.options.words)
    folder = make_run_folder(job, cell)
    runs = []
    for seed in range(job.options.seeds):
        accuracy = {}
        for side in job.experiment.sides:
            name = f"{cell.name}: {side.role}, seed {seed}"
            job.progress.begin(name)
            words = [*side.contender().words, f"--train.seed={seed}"]
            summary = train_once(name, config, folder, words)
            accuracy[side.role] = float(summary["scores"]["test"]["accuracy"])
        runs.append({"seed": seed, "accuracy": accuracy})
        told_values = ", ".join(f"{role} {value:.4f}" for role, value in accuracy.items())
        job.progress.say(f"{cell.name}, seed {seed}: {told_values}")
    _write_config(job, cell)
    return job.keep(cell, {"runs": runs, "cell": describe_cell(cell), **graph_size(graph)})


def accuracy_values(cell: Cell, partitioned: str, epochs: int) -> dict[str, Any]:
    """Make the configuration of a cell, with whole epochs and scores after each."""
    values = cell.values(partitioned, epochs, 0)
    values["train"] |= {"evaluate_every": 1, "learning_rate": LEARNING_RATE}
    return values


def train_once(name: str, config: Config, folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """Train in a process of its own, on loopback; returns the run's summary.

    Parameters
    ----------
    name: "cell: side, seed", for errors; its second half names the run's folder.
    folder: where run and configuration are written.
    words: overrides ``--section.key=value``.

    Raises
    ------
    ClusterError, DeadlineExceeded: the run failed, or took too long.
    """
    run_dir = folder / name.split(": ", 1)[1].replace(", ", "-").replace(" ", "-")
    file = folder / "config.json"
    write_text(file, config.model_dump_json(indent=1) + "\n")
    return train_in_process(name, file, run_dir, words, _RUN_SECONDS)


def _write_config(job: Job, cell: Cell) -> None:
    lines = [
        *job.materials.recipe(cell),
        f"hopper train {cell.name}.toml --train.engine ENGINE --train.seed SEED",
    ]
    folder = job.options.out / CONFIGS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    values = accuracy_values(cell, str(job.materials.parts_path(cell)), job.epochs)
    write_toml(folder / f"{cell.name}.toml", values, lines)


def _cell_entry(record: dict[str, Any]) -> dict[str, Any]:
    runs = record["runs"]
    roles = list(runs[0]["accuracy"])
    sides = {}
    for role in roles:
        values = [run["accuracy"][role] for run in runs]
        drops = [run["accuracy"][roles[0]] - run["accuracy"][role] for run in runs]
        sides[role] = {
            "mean": fmean(values),
            "spread": stdev(values) if len(values) > 1 else None,
            "drop": fmean(drops),
            "drop_half_interval": half_interval(drops),
            "largest_difference": max(abs(drop) for drop in drops),
        }
    return {
        **record["cell"],
        "nodes": record["nodes"],
        "edges": record["edges"],
        "date": record["date"],
        "commit": record["commit"],
        "runs": runs,
        "sides": sides,
        "problems": [],
        "ratios": [],
    }


def half_interval(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of the mean (Student's t). None with fewer than two
    values."""
    if len(values) < 2:
        return None
    quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1))
    return quantile * stdev(values) / math.sqrt(len(values))


def accuracy_table(result: Result) -> Table:
    """Make a table of mean, spread and drop of every side, in per cent."""
    rows = []
    for cell in result["cells"]:
        for role, side in cell["sides"].items():
            spread_text = "" if side["spread"] is None else f" ± {100 * side['spread']:.2f}"
            half = side["drop_half_interval"]
            drop = f"{100 * side['drop']:+.2f}" + ("" if half is None else f" ± {100 * half:.2f}")
            letter = "S" if abs(side["drop"]) <= SAME else drop
            rows.append(
                [
                    *(cell["name"], role, f"{100 * side['mean']:.2f}{spread_text}"),
                    *(letter, drop, f"{100 * side['largest_difference']:.2f}"),
                ]
            )
    headings = (
        *("cell", "side", "test accuracy, %", "drop as in Table 3"),
        *("drop, points", "largest difference in a seed"),
    )
    note = (
        f"Means of {len(result['cells'][0]['runs'])} seeds ± standard deviation; the drop is taken "
        "seed by seed against the first side, ± half of its 95 % interval. S: the mean drop is "
        "within 0.1 points."
    )
    return Table("Accuracy", headings, rows, note)


def draw_accuracies(result: Result, path: Path) -> None:
    """Draw every seed's accuracy as a dot, and means as lines."""
    cells = result["cells"]
    figure, axes = panels(len(cells), 4.4, 4.2)
    for axis, cell in zip(axes, cells, strict=True):
        for index, role in enumerate(cell["sides"]):
            colour = colour_of(role, cell)
            values = [100 * run["accuracy"][role] for run in cell["runs"]]
            axis.plot([index] * len(values), values, "o", color=colour, alpha=0.6)
            mean = 100 * cell["sides"][role]["mean"]
            axis.plot([index - 0.3, index + 0.3], [mean, mean], color=colour, linewidth=2)
        axis.set_xticks(range(len(cell["sides"])), list(cell["sides"]), rotation=30)
        finish(axis, cell["name"], "y")
    figure.supylabel("test accuracy, per cent", fontsize=9)
    save(figure, result, path)
