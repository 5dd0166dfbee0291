"""Scores of training and validation nodes, epoch by epoch, against epochs or seconds of training.

Every side trains with the same seeds over the same links, and once more in float64, whose rounding
hides no difference between sides. An experiment of this kind carries out
:func:`run_curves`, adds :data:`WORDS` to its configurations, and picks what it shows from the
tables and pictures below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, Literal

from benchmarks.paper.charts import colour_of, finish, legend_above, panels, save
from benchmarks.paper.each_cell import Words, no_words, run_sides
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.grid import Job
from benchmarks.paper.tables import NONE, sides_of
from hopper.bench.contender import Contender
from hopper.config import Config
from hopper.errors import RequestError
from hopper.train.results import main_score

WORDS: Final = ("--train.evaluate_every=1", "--train.score_training=true")
"""what the configurations of an experiment with curves need"""
RUNS: Final = "{seeds} seeds of {epochs} whole epochs, all shown, and the first again in float64"
"""what the page says of its runs"""
SCORES: Final = {"train": "training nodes", "val": "validation nodes"}
REACHED: Final = 0.95
"""the share of the first side's best validation score up to which a run's time is reported"""
_STYLES: Final = ("-", "--", ":", "-.")

Run = Mapping[str, Any]
"""one seed of one side: ``test``, and ``points``, a scored epoch each: ``epochs`` and ``seconds``
of training until then, ``train`` and ``val``"""


def count_curves(job: Job) -> int:
    """Count the training runs of a job."""
    return len(job.cells) * (job.options.seeds + 1) * len(job.experiment.sides)


def run_curves(job: Job, words_of: Words = no_words) -> Iterator[dict[str, Any]]:
    """Train every side with every seed, whose scores after every epoch are kept.

    Parameters
    ----------
    words_of: what sides' configurations have besides the words of their labels.

    Yields
    ------
    Cells of result.json; see :func:`~benchmarks.paper.each_cell.run_sides`. Beside its ``runs``, a
    side has the run of the first seed ``in_float64``.
    """
    seeds = range(job.options.seeds)
    turns: dict[str, tuple[str, ...]] = {
        f"seed {seed}": (f"--train.seed={seed}",) for seed in seeds
    }
    turns["seed 0 in float64"] = ("--train.seed=0", "--train.dtype=float64")
    for cell in run_sides(job, turns, _curve, words_of):
        for side in cell["sides"].values():
            side["in_float64"] = side["runs"].pop()
        yield cell


def _curve(side: Contender, _config: Config, summary: Mapping[str, Any]) -> Run:
    spent = accumulate(epoch["seconds"] for epoch in summary["epochs"])
    points = [
        {
            "epochs": epoch["epoch"] + 1,
            "seconds": seconds,
            **{score: epoch[score] for score in SCORES},
        }
        for epoch, seconds in zip(summary["epochs"], spent, strict=True)
        if epoch["val"] is not None
    ]
    if not points:
        raise RequestError(
            f"{side.label}: no epoch was scored; expected a graph with validation nodes, and "
            f"train.evaluate_every of at most the {len(summary['epochs'])} epochs"
        )
    return {"test": main_score(summary, "test"), "points": points}


def scores_table(result: Result) -> Table:
    """Make a table of final scores, and of the time to come near the first side's best."""
    rows = []
    for cell, role, side in sides_of(result):
        runs = side["runs"]
        first = next(iter(cell["sides"].values()))["runs"]
        reached = [
            point
            for run, base in zip(runs, first, strict=True)
            if (point := reach(run, REACHED * max(_scores(base, "val")))) is not None
        ]
        rows.append(
            [
                *(cell["name"], role),
                _mean([100 * _scores(run, "train")[-1] for run in runs]),
                _mean([100 * _scores(run, "val")[-1] for run in runs]),
                _mean([100 * max(_scores(run, "val")) for run in runs]),
                _mean([100 * run["test"] for run in runs if run["test"] is not None]),
                _mean([last["seconds"] / last["epochs"] for last in map(_last, runs)]),
                _mean([float(point["epochs"]) for point in reached]),
                _mean([point["seconds"] for point in reached]),
                f"{len(reached)} of {len(runs)}",
            ]
        )
    headings = (
        *("cell", "side", "training, %", "validation, %", "best validation, %", "test, %"),
        *("epoch, s", f"epochs to {REACHED:.0%}", f"seconds to {REACHED:.0%}", "seeds there"),
    )
    note = (
        "Means of seeds ± standard deviation, over full neighbourhoods; training and validation "
        "after the last epoch, test with the parameters of the best validation score. Epochs and "
        f"seconds of training, scoring left out, until the validation score is {REACHED:.0%} of "
        "the best one that the first side has with the same seed, among the seeds that get there."
    )
    return Table("Scores, and the way there", headings, rows, note)


def reach(run: Run, aim: float) -> Mapping[str, Any] | None:
    """Return the first point with a validation score of at least ``aim``. None if there is none."""
    return next((point for point in run["points"] if point["val"] >= aim), None)


def equality_table(result: Result) -> Table:
    """Make a table that compares the scores of exact sides with the first one's, by epoch."""
    rows = []
    for cell in result["cells"]:
        exact = {role: side for role, side in cell["sides"].items() if side["exact"]}
        first = next(iter(exact.values()), None)
        for role, side in list(exact.items())[1:]:
            assert first is not None
            pairs = list(zip(side["runs"], first["runs"], strict=True))
            rows.append([cell["name"], role, "all seeds", *_differences(pairs)])
            pairs = [(side["in_float64"], first["in_float64"])]
            rows.append([cell["name"], role, "one, in float64", *_differences(pairs)])
    equal = [f"{words}: {what}" for words in SCORES.values() for what in ("equal", "points")]
    note = (
        "Scored epochs whose score is that of the first exact side to the last node, and the "
        "largest difference in percentage points. Exact sides compute the same gradient but for "
        "rounding, which grows over a run: Adam makes steps of one size of whatever rounding "
        "leaves of tiny gradients."
    )
    return Table("Exact sides, epoch by epoch", ("cell", "side", "runs", *equal), rows, note)


def _differences(pairs: Sequence[tuple[Run, Run]]) -> list[str]:
    """Compare runs in pairs: by score, how many points are equal, and the largest difference."""
    cells_text = []
    for score in SCORES:
        gaps = [
            abs(value - base_value)
            for run, base in pairs
            for value, base_value in zip(_scores(run, score), _scores(base, score), strict=True)
        ]
        cells_text += [f"{gaps.count(0.0)} of {len(gaps)}", f"{100 * max(gaps):.2f}"]
    return cells_text


def draw_curves(axis: Literal["epochs", "seconds"]) -> Callable[[Result, Path], None]:
    """Return a function that draws the scores of all seeds against epochs or seconds of training.
    It draws a row for each cell, with training nodes beside validation nodes."""

    def draw(result: Result, path: Path) -> None:
        cells = result["cells"]
        figure, places = panels(len(SCORES) * len(cells), 5.5, 3.4)
        shown = ((score, cell) for cell in cells for score in SCORES)
        for panel, (score, cell) in zip(places, shown, strict=True):
            for index, (role, side) in enumerate(cell["sides"].items()):
                for run in side["runs"]:
                    panel.plot(
                        [point[axis] for point in run["points"]],
                        [100 * value for value in _scores(run, score)],
                        _STYLES[index % len(_STYLES)], color=colour_of(role, cell),
                        linewidth=1.2, alpha=0.7, label=role,
                    )  # fmt: skip
            label = "epochs" if axis == "epochs" else "seconds of training"
            finish(panel, f"{cell['name']}: {SCORES[score]}, %", "both", x_label=label)
            panel.set_xlim(left=0)
        legend_above(figure, places)
        save(figure, result, path)

    return draw


def _last(run: Run) -> Mapping[str, Any]:
    point: Mapping[str, Any] = run["points"][-1]
    return point


def _scores(run: Run, score: str) -> list[float]:
    return [point[score] for point in run["points"]]


def _mean(values: Sequence[float]) -> str:
    """Write the mean of seeds with its standard deviation, or a dash if there are no seeds."""
    if not values:
        return NONE
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"
