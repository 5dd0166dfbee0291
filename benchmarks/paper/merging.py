"""Merging of time steps: how it settles (HopGNN, Figure 17) and which step goes (Figure 18)."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

from benchmarks.paper.charts import COLOURS, canvas, finish, legend_above, save
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.tables import number
from hopper.config import Config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.micrograph.merge import Selection, make_time_steps
from hopper.micrograph.merge_number import MERGE, TRIED
from hopper.partition import PartitionedGraph

SELECTIONS: Final[tuple[Selection, ...]] = ("fewest", "random")
_ITERATIONS: Final = 64
"""of the first epoch, at most, over which the spread of models is averaged"""


def workload(config: Config, graph: PartitionedGraph) -> dict[str, Any]:
    """Return how many models are on each rank at each time step, by selection and number dissolved.

    Returns
    -------
    "<selection> k": ``first`` = [ranks][steps] of the first iteration, ``busiest`` = the mean over
    iterations of the sum over steps of the largest number on a rank: how many groups are trained
    one after another (no models meeting: the number of steps).
    """
    world = graph.book.servers * config.cluster.ranks_per_server
    schedule = make_schedule(Request(config, graph))
    batches = [schedule.batch(0, i) for i in range(min(schedule.iterations, _ITERATIONS))]
    workload: dict[str, Any] = {}
    for dissolve in range(1, world - 1):
        for selection in SELECTIONS:
            counts = []
            for batch in batches:
                steps = make_time_steps(batch, world, dissolve, selection, config.train.seed)
                counts.append(
                    np.stack([np.bincount(column, minlength=world) for column in steps.ranks.T], 1)
                )
            workload[f"{selection} {dissolve}"] = {
                "first": counts[0].tolist(),
                "busiest": fmean(int(count.max(axis=0).sum()) for count in counts),
            }
    return {"workload": workload, "iterations": len(batches)}


def workload_table(result: Result) -> Table:
    """Make a table of the groups that are trained one after another, by selection."""
    rows = []
    for cell in result["cells"]:
        for name, work in cell["extra"]["workload"].items():
            selection, dissolve = name.split(" ")
            steps = cell["servers"] - int(dissolve)
            first = "; ".join(" ".join(map(str, rank)) for rank in work["first"])
            rows.append(
                [cell["name"], selection, dissolve, str(steps), number(work["busiest"]), first]
            )
    headings = (
        *("cell", "selection", "steps dissolved", "steps left", "groups one after another"),
        "models on each rank by step, first iteration",
    )
    note = (
        "Groups one after another: sum over time steps of the largest number of models on a rank, "
        "mean over iterations. Models that meet on a rank wait for each other there."
    )
    return Table("Workload", headings, rows, note)


def draw_selection(result: Result, path: Path) -> None:
    """Draw seconds by selection, and the models on each rank and step of the first iteration."""
    cells = result["cells"]
    figure, axes = canvas(3, 14, 2.4 + 0.45 * len(cells), width_ratios=[2, 1, 1])
    roles = list(cells[0]["sides"])
    for index, role in enumerate(roles):
        ys = [row + 0.8 * ((index + 0.5) / len(roles) - 0.5) for row in range(len(cells))]
        seconds = [cell["sides"][role]["seconds"] for cell in cells]
        axes[0].barh(ys, seconds, height=0.8 / len(roles), color=COLOURS[index], label=role)
    axes[0].set_yticks(range(len(cells)), [cell["name"] for cell in cells])
    axes[0].invert_yaxis()
    legend_above(figure, axes[:1])
    finish(axes[0], "median epoch, s", "x")
    for axis, selection in zip(axes[1:], SELECTIONS, strict=True):
        _draw_workload(axis, cells[0], selection)
    save(figure, result, path)


def _draw_workload(axes: Any, cell: Any, selection: str) -> None:
    models = np.array(cell["extra"]["workload"][f"{selection} 1"]["first"])
    axes.imshow(models, cmap="Blues", vmin=0, vmax=max(2, int(models.max())))
    for (rank, step), count in np.ndenumerate(models):
        colour = "white" if count > 1 else "black"
        axes.text(step, rank, str(count), ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks(range(models.shape[1]), [f"t{step}" for step in range(models.shape[1])])
    axes.set_yticks(range(models.shape[0]), [f"rank {rank}" for rank in range(models.shape[0])])
    finish(axes, f"{selection}: models by step", "x")
    axes.grid(visible=False)


def epochs_table(result: Result) -> Table:
    """Make a table of seconds and time steps by epoch under adaptive merging."""
    rows = []
    for cell in result["cells"]:
        for index, epoch in enumerate(cell["sides"]["All"]["epochs"]):
            steps = [_steps(cell["servers"], decisions) for decisions in epoch["decisions"]]
            base = cell["sides"]["+PG"]["epochs"][index]["seconds"]
            rows.append(
                [
                    *(cell["name"], str(index), ", ".join(steps)),
                    number(fmean(epoch["seconds"])),
                    number(fmean(base)),
                ]
            )
    headings = ("cell", "epoch", "time steps, by round", "All: epoch, s", "+PG: epoch, s")
    note = (
        "Means over rounds. Epoch 0 also warms up, in both columns. Two numbers with a stroke are "
        "compared: the one that stands, and the other."
    )
    return Table("Epoch by epoch", headings, rows, note)


def _steps(servers: int, decisions: dict[str, int]) -> str:
    """Return the time steps of an epoch's iterations."""
    return "/".join(str(servers - decisions[key]) for key in (MERGE, TRIED) if key in decisions)
