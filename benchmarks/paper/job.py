"""An experiment from the command line to its files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.paper.cell_figures import cell_figures
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.grid import CONFIGS_FOLDER, Job, Progress, run_grid
from benchmarks.paper.materials import Materials
from benchmarks.paper.options import Options
from benchmarks.paper.page import PICTURE_FILE, write_page
from benchmarks.paper.result import RESULT_FILE, assemble_result, write_result
from cache_server.errors import CacheServerError
from hopper.errors import HopperError, RequestError


def make_job(experiment: Experiment, options: Options, progress: Progress) -> Job:
    """Check what is asked before anything is made.

    Raises
    ------
    RequestError, ConfigError: names the option or key, what was expected and what came.
    """
    options.check()
    experiment = experiment.of_sides(options.sides)
    if experiment.shares_cpus and options.emulated and options.host_cpus is None:
        most = max(experiment.grid.servers or (1,))
        options = replace(options, host_cpus=len(os.sched_getaffinity(0)) / most)
    if experiment.host_memory and options.emulated and options.host_memory is None:
        options = replace(options, host_memory=experiment.host_memory)
    _refuse_other_result(experiment, options.out)
    materials = Materials(options.work, progress.say)
    cells = tuple(experiment.grid.cells(options))
    for graph in dict.fromkeys(cell.graph for cell in cells):
        materials.check(graph)
    job = Job(experiment, options, cells, materials, progress)
    for cell in cells if experiment.grid.trains else ():
        # Report a key that one of the models does not take now, not after hours.
        job.config(cell, options.work)
    return job


def run_job(job: Job) -> dict[str, Any]:
    """Run all cells that have no result yet, then write result, picture and page.

    Returns
    -------
    The content of result.json.

    Raises
    ------
    HopperError: a cell cannot be run. Result, picture and page of those before it are written, also
        when interrupted, and they are not run again next time.
    """
    options = job.options
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    cells: list[dict[str, Any]] = []
    try:
        cells.extend(_cells(job))
    except (KeyboardInterrupt, HopperError, CacheServerError):
        if cells:
            _publish(job, cells)
            job.progress.say(f"{len(cells)} of {len(job.cells)} cells are finished: {options.out}")
        raise
    return _publish(job, cells)


def _cells(job: Job) -> Iterator[dict[str, Any]]:
    experiment = job.experiment
    if experiment.carry_out is not None:
        yield from experiment.carry_out(job)
        return
    for record in run_grid(job):
        yield cell_figures(record, experiment.comparisons)


def _publish(job: Job, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Write result, picture and page of the finished cells."""
    experiment, options = job.experiment, job.options
    cells = [cell | read_config(options.out, cell["name"]) for cell in cells]
    assembled = assemble_result(experiment, options, cells, len(job.cells))
    result = write_result(options.out, assembled)
    if experiment.draw is not None:
        experiment.draw(result, options.out / PICTURE_FILE)
    write_page(options.out, experiment, result)
    return result


def read_config(out: Path, cell: str) -> dict[str, str]:
    """Read a cell's configuration as TOML, below the commands that repeat the cell, as
    ``config``."""
    path = out / CONFIGS_FOLDER / f"{cell}.toml"
    return {"config": path.read_text()} if path.is_file() else {}


def _refuse_other_result(experiment: Experiment, out: Path) -> None:
    path = out / RESULT_FILE
    if out.exists() and not out.is_dir():
        raise RequestError(f"--out: {out} is a file; name a folder")
    if path.is_file():
        name = json.loads(path.read_text()).get("experiment")
        if name != experiment.name:
            raise RequestError(
                f"--out: {out} holds the result of {name}; name another folder for "
                f"{experiment.name}"
            )
