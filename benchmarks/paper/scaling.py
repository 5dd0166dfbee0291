"""How fast more servers train: roots in a second, beside those of the least number of servers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks.paper.charts import colour_of, finish, legend_above, panels, save
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.tables import number
from hopper.config import Config, make_config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.palette import SOFT_TEXT
from hopper.partition import PartitionedGraph

_DEALT: Final = {False: "model_centric", True: "locality"}
"""an engine by whether ranks draw batches from their own roots alone"""
_OWN_ROOTS: Final = "locality"


def count_roots(config: Config, graph: PartitionedGraph) -> dict[str, Any]:
    """Return, as ``roots``, the mean size of an iteration's global batch by engine. Where ranks
    draw from their own roots, an epoch is dealt evenly, so batches are a little smaller."""
    configs = {}
    for engine in _DEALT.values():
        engine_config = make_config(config.model_dump(), [f"--train.engine={engine}"])
        schedule = make_schedule(Request(engine_config, graph))
        sizes = [schedule.batch(0, index).size for index in range(schedule.iterations)]
        configs[engine] = fmean(sizes)
    return {"roots": configs}


def roots_per_second(cell: Mapping[str, Any], role: str) -> float:
    """Return the roots that all ranks together train in a second, in one side's median epoch."""
    side = cell["sides"][role]
    draws_own = side["label"].partition(":")[0] == _OWN_ROOTS
    roots: float = cell["extra"]["roots"][_DEALT[draws_own]]
    return roots * float(side["iterations"]) / float(side["seconds"])


def scaling_table(result: Result) -> Table:
    """Make a table of the roots in a second of every side, and of the speed-up over the least
    number of servers."""
    rows = []
    for cells in _series(result):
        for role in cells[0]["sides"]:
            least = roots_per_second(cells[0], role)
            for cell in cells:
                rate = roots_per_second(cell, role)
                rows.append(
                    [
                        *(cell["name"], role, str(cell["servers"]), number(rate)),
                        *(number(rate / least), number(cell["servers"] / cells[0]["servers"])),
                    ]
                )
    headings = ("cell", "side", "servers", "roots a second", "speed-up", "with none lost")
    note = "Of the median epoch. The speed-up is over the least number of servers."
    return Table("Scaling", headings, rows, note)


def draw_scaling(result: Result, path: Path) -> None:
    """Draw speed-ups against servers, a place for each graph and model. The dotted line loses
    none."""
    series = _series(result)
    figure, axes = panels(len(series), 5.0, 4.2, sharey=True)
    for axis, cells in zip(axes, series, strict=True):
        servers = [cell["servers"] for cell in cells]
        axis.plot(servers, [count / servers[0] for count in servers], ":", color=SOFT_TEXT)
        for role in cells[0]["sides"]:
            rates = [roots_per_second(cell, role) for cell in cells]
            axis.plot(servers, [rate / rates[0] for rate in rates], marker="o", label=role,
                       color=colour_of(role, cells[0]))  # fmt: skip
        axis.set_xticks(servers, [str(count) for count in servers])
        finish(axis, f"{cells[0]['graph']}, {cells[0]['model']}", "both", x_label="servers")
    figure.supylabel("roots a second, over the least servers'", fontsize=9)
    legend_above(figure, axes[:1])
    save(figure, result, path)


def _series(result: Result) -> list[list[Mapping[str, Any]]]:
    """Return the cells that differ in the number of servers alone, by that number."""

    def key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
        return cell["graph"], cell["model"], cell["hidden"]

    return [
        sorted(cells, key=lambda cell: int(cell["servers"]))
        for _, cells in groupby(sorted(result["cells"], key=key), key=key)
    ]
