"""What experiments share that carry out their cells by themselves, and not as A/Bs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.paper.cells import Cell
from benchmarks.paper.grid import RUNS_FOLDER, Job
from hopper.partition import PartitionedGraph


def run_cells(job: Job, run: Callable[[Job, Cell], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Carry out every cell that has no result yet.

    Parameters
    ----------
    run: carries a cell out, and tells the job's progress of as many runs as every cell has.

    Yields
    ------
    The content of every cell's file, in the order of the cells.
    """
    for cell in job.cells:
        kept = job.finished(cell, job.fingerprint(cell))
        if kept is None:
            kept = run(job, cell)
        else:
            for _ in range(job.total_runs // len(job.cells)):
                job.progress.begin(cell.name)
            job.progress.say(f"{cell.name}: is there already")
        yield kept


def make_run_folder(job: Job, cell: Cell) -> Path:
    """An empty folder for the runs of a cell; what an interrupted or differently asked one has left
    is deleted."""
    folder = job.options.work / RUNS_FOLDER / job.experiment.name / cell.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def graph_size(graph: PartitionedGraph) -> dict[str, int]:
    """The ``nodes`` and ``edges`` of a graph, of all types together."""
    schema = graph.schema
    return {
        "nodes": sum(kind.count for kind in schema.node_types.values()),
        "edges": sum(kind.count for kind in schema.relations.values()),
    }
