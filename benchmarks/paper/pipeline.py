"""Hopper's own experiments: what preparing iterations ahead saves, in time and in bytes."""

from __future__ import annotations

from typing import Final

from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed
from benchmarks.paper.cooperative import traffic_table
from benchmarks.paper.experiment import Experiment, Side
from benchmarks.paper.heta import FANOUTS, GLOBAL_BATCH, stage_table
from benchmarks.paper.heta import SCALES as TYPED_SCALES
from benchmarks.paper.tables import (
    memory_table,
    parity_table,
    rows_table,
    speed_table,
    summary_table,
)

_TABLES: Final = (
    *(summary_table, speed_table, stage_table, traffic_table),
    *(parity_table, rows_table, memory_table),
)
_REACHES: Final = (5, 20)
_ROOM: Final = "20M"


def _on_and_off(*labels: str) -> tuple[tuple[Side, ...], tuple[tuple[str, str], ...]]:
    """Every engine with and without a pipeline, and which two are compared."""
    sides, pairs = [], []
    for label in labels:
        name = label.split(":")[0]
        off, on = Side(f"{name}, off", f"{label}:pipeline.depth=0"), Side(f"{name}, on", label)
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
        tables=_TABLES,
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
