"""Functions of experiments whose cells are not A/Bs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.paper.cells import Cell
from benchmarks.paper.grid import RUNS_FOLDER, Job, write_config
from hopper.bench.contender import Contender
from hopper.bench.placement import open_hosts
from hopper.config import Config
from hopper.partition import PartitionedGraph
from hopper.whole_files import write_text

Turns = Mapping[str, tuple[str, ...]]
"""by name, what the runs of a turn add to the configuration"""
Take = Callable[[Contender, Config, Mapping[str, Any]], Any]
"""from a side, the cell's configuration and a run's summary to what is kept of the run"""
Words = Callable[[Job, Cell, str], tuple[str, ...]]
"""from a cell and a side's role to what the side's configuration has besides its own words"""
_CONFIG_FILE: Final = "config.json"
_RUN_SECONDS: Final = 3600.0
_KEPT: Final = ("date", "commit", "nodes", "edges", "emulation", "sides")
"""what result.json has of a cell's file"""


def no_words(_job: Job, _cell: Cell, _role: str) -> tuple[str, ...]:
    """Return no words, for sides whose labels say everything."""
    return ()


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
        record = job.read_result(cell, job.fingerprint(cell))
        if record is None:
            record = run(job, cell)
        else:
            for _ in range(job.total_runs // len(job.cells)):
                job.progress.begin(cell.name)
            job.progress.say(f"{cell.name}: is there already")
        yield record


def run_sides(
    job: Job, turns: Turns, take: Take, words_of: Words = no_words
) -> Iterator[dict[str, Any]]:
    """Train all sides of every cell in turns, over the same links.

    Yields
    ------
    Cells of result.json: as in the grid, with ``sides``; each has ``runs``, what was taken of its
    run in every turn.

    Raises
    ------
    ClusterError: a run failed; names it.
    """
    for record in run_cells(job, partial(_run_sides, turns, take, words_of)):
        yield record["cell"] | {key: record[key] for key in _KEPT} | {"problems": [], "ratios": []}


def _run_sides(turns: Turns, take: Take, words_of: Words, job: Job, cell: Cell) -> dict[str, Any]:
    graph = job.materials.parts(cell)
    divisions = {
        method: job.materials.division(cell, method).path for method in job.experiment.divisions
    }
    sides = {side.role: side.contender(None, divisions) for side in job.experiment.sides}
    of_sides = {role: (*side.words, *words_of(job, cell, role)) for role, side in sides.items()}
    config = job.config(cell, graph.path.absolute())
    folder = make_run_folder(job, cell)
    write_text(folder / _CONFIG_FILE, config.model_dump_json(indent=1) + "\n")
    runs: dict[str, list[Any]] = {role: [] for role in sides}
    with open_hosts(job.options.request(cell.servers), job.progress.say) as (train, cluster):
        for turn, words in turns.items():
            for role, side in sides.items():
                name = f"{cell.name}: {role}, {turn}"
                job.progress.begin(name)
                run_dir = folder / f"{side.folder}-{turn}".replace(" ", "-")
                summary = train(
                    name, folder / _CONFIG_FILE, run_dir, [*of_sides[role], *words], _RUN_SECONDS
                )
                runs[role].append(take(side, config, summary))
                seconds = sum(epoch["seconds"] for epoch in summary["epochs"])
                job.progress.say(f"{name}: {len(summary['epochs'])} epochs in {seconds:.1f} s")
    write_config(job, cell, more=next(iter(turns.values())))
    record = {
        "sides": {
            role: {"label": side.label, "exact": side.exact(config), "runs": runs[role]}
            for role, side in sides.items()
        },
        "emulation": None if cluster is None else cluster.describe(),
    }
    entry = job.keep(cell, record | graph_size(graph))
    # The results hold all figures of the runs, so their files can go.
    shutil.rmtree(folder)
    return entry


def make_run_folder(job: Job, cell: Cell) -> Path:
    """Make an empty folder for the runs of a cell. What an earlier run left in it is deleted."""
    folder = job.options.work / RUNS_FOLDER / job.experiment.name / cell.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def graph_size(graph: PartitionedGraph) -> dict[str, int]:
    """Return the number of ``nodes`` and ``edges`` of a graph, over all types."""
    schema = graph.schema
    return {
        "nodes": sum(kind.count for kind in schema.node_types.values()),
        "edges": sum(kind.count for kind in schema.relations.values()),
    }
