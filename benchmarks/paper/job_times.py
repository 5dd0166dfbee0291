"""Where the time of a training job goes, from the graph to the best validation score (DistDGLv2,
Table 2)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.paper.accuracy import accuracy_values, train_once
from benchmarks.paper.cells import Cell
from benchmarks.paper.each_cell import graph_size, make_run_folder
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.grid import Job
from benchmarks.paper.materials import SEED
from benchmarks.paper.tables import number, percent
from hopper.config import make_config
from hopper.errors import RequestError
from hopper.hetero.divide import divide_graph
from hopper.run_log import OPENED
from hopper.train.results import main_score, spans_file

_PARTITIONER: Final = "assign nodes"
"""how the partitioner's own phase begins; all others load, number, and write"""
_PATIENCE: Final = 3
_RUN: Final = "run"


def measure_job(job: Job, cell: Cell) -> dict[str, Any]:
    """Divide a cell's graph anew, then train on it with the experiment's side until the validation
    score has not been better for a few epochs.

    Returns
    -------
    ``phases``: seconds of every phase of dividing. ``partitioner``, ``load_save``, ``load``,
    ``train``: seconds. ``best_epoch``, ``epochs``: the epoch of the best score, counted from 0, and
    how many were trained. ``val``: that score.
    """
    (side,) = job.experiment.sides
    graph = job.materials.graph(cell)
    folder = make_run_folder(job, cell)
    job.progress.say(f"{cell.name}: dividing the graph")
    divided = divide_graph(graph, folder / "parts", cell.servers, cell.method, seed=SEED)
    phases: dict[str, float] = divided.description["seconds"]
    partitioner = sum(s for name, s in phases.items() if name.startswith(_PARTITIONER))
    values = accuracy_values(cell, str(divided.path), job.epochs)
    values["train"]["patience"] = _PATIENCE
    config = make_config(values, job.options.words)
    job.progress.say(f"{cell.name}: training")
    began = time.time()
    summary = train_once(f"{cell.name}: {_RUN}", config, folder, side.contender().words)
    measured = {
        **graph_size(divided),
        "phases": phases,
        "partitioner": partitioner,
        "load_save": sum(phases.values()) - partitioner,
        "load": first_iteration(folder / _RUN, cell.servers) - began,
        "train": seconds_to_best(summary["epochs"], summary["best_epoch"]),
        "best_epoch": summary["best_epoch"],
        "epochs": len(summary["epochs"]),
        "val": main_score(summary, "val"),
    }
    shutil.rmtree(folder)
    return measured


def first_iteration(run_dir: Path, ranks: int) -> float:
    """Return when the last of the ranks began its first iteration, in seconds since 1970.

    Raises
    ------
    RequestError: a rank's spans hold no iteration.
    """
    moments = []
    for rank in range(ranks):
        opened = first = None
        for line in spans_file(run_dir, rank).read_text().splitlines():
            span = json.loads(line)
            if span.get("event") == OPENED:
                opened = span["unix"]
            elif "iteration" in span and (first is None or span["start"] < first):
                first = span["start"]
        if opened is None or first is None:
            raise RequestError(f"{spans_file(run_dir, rank)}: no iteration in it")
        moments.append(opened + first)
    return float(max(moments))


def seconds_to_best(epochs: Sequence[dict[str, Any]], best: int) -> float:
    """Return the seconds of training and of scoring, up to the end of an epoch."""
    return sum(e["seconds"] + e["evaluation_seconds"] for e in epochs if e["epoch"] <= best)


def times_table(result: Result) -> Table:
    """Make a table of the seconds of every part of a job, and their shares."""
    parts = ("partitioner", "load_save", "load", "train")
    rows = []
    for cell in result["cells"]:
        whole = sum(cell[name] for name in parts)
        rows.append(
            [
                cell["name"],
                *(f"{number(cell[name])} ({percent(cell[name] / whole)})" for name in parts),
                *(str(cell["best_epoch"] + 1), percent(cell["val"])),
            ]
        )
    headings = (
        *("cell", "partitioner, s", "loading and saving, s", "loading for training, s"),
        *("training to the best score, s", "its epoch", "best validation score"),
    )
    note = (
        "Loading and saving: all of dividing but the partitioner. Loading for training: from the "
        "start of the launcher to the first iteration of the last rank. Training: whole epochs, "
        f"scored after each, up to that of the best score, after which {_PATIENCE} were no better."
    )
    return Table("Where the time of a job goes", headings, rows, note)


def phases_table(result: Result) -> Table:
    """Make a table of the seconds of every phase of dividing a graph."""
    rows = [
        [cell["name"], phase, number(seconds)]
        for cell in result["cells"]
        for phase, seconds in cell["phases"].items()
    ]
    return Table("Phases of dividing", ("cell", "phase", "seconds"), rows)
