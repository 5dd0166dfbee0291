"""Runs experiments that measure a cell in this process instead of comparing whole training runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from benchmarks.paper.cells import Cell
from benchmarks.paper.each_cell import run_cells
from benchmarks.paper.grid import CONFIGS_FOLDER, Job
from benchmarks.paper.toml import write_toml

_OF_THE_FILE: Final = ("schema", "asked", "machine", "versions", "cell")
"""what a cell's file has and result.json says once, or in another way"""

Measure = Callable[[Job, Cell], dict[str, Any]]
"""measures a cell; what it returns is kept in the cell's file"""


def count_cells(job: Job) -> int:
    """Count the runs of a job, one for each cell."""
    return len(job.cells)


def run_measured(measure: Measure) -> Callable[[Job], Iterator[dict[str, Any]]]:
    """Return a function that carries out an experiment whose cells are measured by a function.

    The cells that it yields are those of result.json: what was measured, with ``problems`` and
    ``ratios`` (empty unless the function tells some). A cell that is there already is not measured
    again.
    """

    def carry_out(job: Job) -> Iterator[dict[str, Any]]:
        for record in run_cells(job, partial(_measure_cell, measure)):
            values = {key: value for key, value in record.items() if key not in _OF_THE_FILE}
            yield {**record["cell"], "problems": [], "ratios": [], **values}

    return carry_out


def _measure_cell(measure: Measure, job: Job, cell: Cell) -> dict[str, Any]:
    job.progress.begin(cell.name)
    entry = job.keep(cell, measure(job, cell))
    _write_config(job, cell)
    return entry


def _write_config(job: Job, cell: Cell) -> None:
    folder = job.options.out / CONFIGS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    values = cell.values(str(job.materials.parts_path(cell)), job.epochs, job.iterations)
    write_toml(folder / f"{cell.name}.toml", values, job.materials.recipe(cell))
