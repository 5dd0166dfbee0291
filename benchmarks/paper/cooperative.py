"""Hopper's own experiments: every engine side by side, and what "auto" takes."""

from __future__ import annotations

from typing import Final

from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed
from benchmarks.paper.experiment import Experiment, Result, Table
from benchmarks.paper.hopgnn import BASE, COOPERATIVE, PG, ZERO
from benchmarks.paper.tables import (
    NONE,
    memory_table,
    number,
    parity_table,
    rows_table,
    sides_of,
    speed_table,
    summary_table,
    traffic_table,
)
from hopper.bench.layer_work import MEASURES, unevenness

SIDES: Final = (BASE, PG, ZERO, COOPERATIVE)
SCALES: Final = {"uk-like": 0.1, "products-like": 0.1, "arxiv-like": 1.0, "scattered": 1.0}


def auto_table(result: Result) -> Table:
    """Make a table of what "auto" took after two iterations, and how far it is from the fastest
    side."""
    rows = []
    for cell in result["cells"]:
        chosen_engine = cell["auto"]["engine"]
        seconds = {
            side["label"].partition(":")[0]: side["seconds"] for side in cell["sides"].values()
        }
        fastest = min(seconds, key=lambda engine: seconds[engine])
        tries = "; ".join(
            f"{attempt['engine']} {number(attempt['seconds'])}" for attempt in cell["auto"]["tries"]
        )
        lost = seconds[chosen_engine] / seconds[fastest] if chosen_engine in seconds else None
        rows.append([cell["name"], chosen_engine, fastest, number(lost) if lost else NONE, tries])
    return Table(
        "What auto takes",
        ("cell", "taken", "fastest of the rounds", "taken over fastest", "tried, s an iteration"),
        rows,
        'One run with `train.engine = "auto"`, which tries every exact engine for two iterations.',
    )


def work_table(result: Result) -> Table:
    """Make a table of how an engine divides the computation of layers among ranks."""
    rows = []
    for cell, role, side in sides_of(result):
        for layer, work in enumerate(side["work"], 1):
            sums = [(sum(work[measure]), unevenness(work[measure])) for measure in MEASURES]
            rows.append(
                [
                    *(cell["name"], role, str(layer)),
                    *(text for total, most in sums for text in (f"{total:,.0f}", number(most))),
                ]
            )
    names = ("rows projected", "destinations", "edges", "rows sent", "rows received")
    headings = [heading for name in names for heading in (name, "busiest over mean")]
    note = "All ranks together, means of an iteration; beside it the busiest rank over the mean."
    return Table("Work by layer", ("cell", "side", "layer", *headings), rows, note)


def _experiment(layers: int) -> Experiment:
    return Experiment(
        name=f"engines-{layers}-hops",
        title=f"Exact engines, GraphSAGE with {layers} layers, fanout 10",
        published=(),
        grid=Grid(
            tuple(SCALES), ("sage",), scales=SCALES, hidden=(16, 64, 128, 256), layers=layers
        ),
        tables=(
            *(summary_table, speed_table, traffic_table, auto_table),
            *(work_table, parity_table, rows_table, memory_table),
        ),
        sides=SIDES,
        comparisons=(
            *((side.role, BASE.role) for side in SIDES[1:]),
            *((COOPERATIVE.role, side.role) for side in (ZERO, PG)),
        ),
        draw=draw_speed,
        lets_auto_choose=True,
    )


EXPERIMENTS: Final = tuple(_experiment(layers) for layers in (2, 3))
