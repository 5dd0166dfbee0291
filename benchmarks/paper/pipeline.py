"""Hopper's own experiments: what preparing iterations ahead saves, in time and in bytes."""

from __future__ import annotations

from typing import Final

from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed
from benchmarks.paper.experiment import Experiment, Result, Side, Table
from benchmarks.paper.heta import FANOUTS, GLOBAL_BATCH, stage_table
from benchmarks.paper.heta import SCALES as TYPED_SCALES
from benchmarks.paper.tables import (
    memory_table,
    number,
    parity_table,
    percent,
    rows_table,
    speed_table,
    summary_table,
    traffic_table,
)

_TABLES: Final = (
    *(summary_table, speed_table, stage_table, traffic_table),
    *(parity_table, rows_table, memory_table),
)
_REACHES: Final = (5, 20)
_ROOM: Final = "20M"
_STAGES: Final = {
    "plan": ("sample",),
    "read": ("gather",),
    "train": ("compute", "migrate", "sync", "wait"),
}


def ideal_table(result: Result) -> Table:
    """Make a table of how near a pipeline comes to the longest of what it overlaps."""
    rows, cores = [], result["machine"]["usable_cores"]
    for cell in result["cells"]:
        for name in dict.fromkeys(role.rpartition(", ")[0] for role in cell["sides"]):
            on, off = _roles(name)
            with_it, without = cell["sides"][on], cell["sides"][off]
            spent = {
                stage: sum(without["stage_seconds"][name] for name in parts) / without["iterations"]
                for stage, parts in _STAGES.items()
            }
            slowest = max(spent, key=lambda stage: spent[stage])
            turns = with_it["iterations"]
            busy = with_it["busiest_cpu_seconds"] * with_it["ranks"] / cores / turns
            ideal, seconds_taken = max(spent[slowest], busy), with_it["seconds"] / turns
            rows.append(
                [
                    *(cell["name"], on, number(without["seconds"] / without["iterations"])),
                    *(f"{slowest}, {number(spent[slowest])}", number(busy), number(seconds_taken)),
                    percent(ideal / seconds_taken),
                ]
            )
    headings = (
        *("cell", "side", "iteration without, s", "slowest stage, s", "processors, s"),
        *("iteration with, s", "of the ideal"),
    )
    note = (
        "The ideal is the slowest stage alone, as it is without a pipeline (planning; reading; "
        "computing with the messages and waits of it), or the processor time of all ranks over "
        "the cores that they share, whichever is longer. Feature servers' processor time is not "
        "in it."
    )
    return Table("Beside the ideal", headings, rows, note)


def _roles(name: str) -> tuple[str, str]:
    """Return what an engine's side with a pipeline is called, and that without."""
    return f"{name}, on", f"{name}, off"


def _on_and_off(*labels: str) -> tuple[tuple[Side, ...], tuple[tuple[str, str], ...]]:
    """Return every engine with and without a pipeline, and which two are compared."""
    sides, pairs = [], []
    for label in labels:
        name = label.split(":")[0]
        roles = _roles(name)
        on, off = Side(roles[0], label), Side(roles[1], f"{label}:pipeline.depth=0")
        sides += [off, on]
        pairs.append((on.role, off.role))
    return tuple(sides), tuple(pairs)


def _pipeline(name: str, title: str, grid: Grid, *labels: str) -> Experiment:
    sides, comparisons = _on_and_off(*labels)
    return Experiment(
        name=name,
        title=title,
        published=(),
        grid=grid,
        tables=(*_TABLES[:2], ideal_table, *_TABLES[2:]),
        sides=sides,
        comparisons=comparisons,
        draw=draw_speed,
        rounds=5,
        epochs=5,
    )


def _lookahead() -> Experiment:
    sides, comparisons = [], []
    for engine in ("model_centric", "zero_hop"):
        plain = Side(engine, engine)
        sides.append(plain)
        for reach in _REACHES:
            side = Side(f"{engine}, {reach} ahead", f"{engine}:pipeline.lookahead={reach}")
            room = f"{side.label}:pipeline.lookahead_memory={_ROOM}"
            sides += [side, Side(f"{side.role}, {_ROOM}", room)]
            comparisons += [(side.role, plain.role)]
    return Experiment(
        name="lookahead",
        title="Rows kept for coming iterations",
        published=(),
        grid=Grid(
            ("products-like", "uk-like", "scattered"),
            ("sage",),
            scales={"products-like": 0.1, "uk-like": 0.05, "scattered": 0.25},
        ),
        tables=_TABLES,
        sides=tuple(sides),
        comparisons=tuple(comparisons),
        draw=draw_speed,
        rounds=5,
        epochs=4,
    )


EXPERIMENTS: Final = (
    _pipeline(
        "pipeline",
        "Iterations prepared ahead, graphs of one node type",
        Grid(
            ("scattered", "uk-like"),
            ("sage", "gat"),
            scales={"scattered": 0.25, "uk-like": 0.05},
            batch_sizes=(1024,),
        ),
        *("model_centric", "hop:merge=off", "zero_hop", "cooperative"),
    ),
    _pipeline(
        "pipeline-typed",
        "Iterations prepared ahead, graphs of several node types",
        Grid(
            ("mag-like", "donor-like"),
            ("rgcn", "rgat"),
            scales=TYPED_SCALES,
            hidden=(64,),
            layers=2,
            fanouts=(FANOUTS,),
            shared_batch=GLOBAL_BATCH,
        ),
        *("model_centric", "cooperative", "raf:partitioned={meta}"),
    ),
    _lookahead(),
)
