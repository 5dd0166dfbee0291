"""Hopper's engines, the papers' baselines and other systems, side by side in one run."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed
from benchmarks.paper.experiment import Experiment, Result, Side, Table
from benchmarks.paper.heta import FANOUTS, GLOBAL_BATCH, LOCAL, RAF, VANILLA
from benchmarks.paper.heta import SCALES as TYPED_SCALES
from benchmarks.paper.hopgnn import BASE, COOPERATIVE, LOCALITY, NAIVE, P3, PG, SHALLOW, ZERO
from benchmarks.paper.tables import (
    NONE,
    megabytes,
    memory_table,
    number,
    parity_table,
    percent,
    rows_table,
    speed_table,
    summary_table,
    traffic_table,
)
from benchmarks.peers.registry import PEERS

OWN: Final = (PG, ZERO, COOPERATIVE)
_OWN_ROLES: Final = {side.role for side in (*OWN, RAF)}
OTHERS: Final = (BASE, NAIVE, P3, LOCALITY)
CACHED: Final = Side("vanilla, METIS, cache", f"{VANILLA.label}:cache.policy=benefit")
SYSTEMS: Final = ("distdgl", "graphbolt")


def together_table(result: Result) -> Table:
    """Make a table of time, bytes and accuracy after equal epochs, by cell, engine and system."""
    rows = []
    for cell in result["cells"]:
        base = next(iter(cell["sides"].values()))["interface_bytes"]
        for role, side in everybody(cell).items():
            nbytes = side["interface_bytes"]
            rows.append(
                [
                    *(cell["name"], role if side.get("exact") else f"{role} (own batches)"),
                    number(side["seconds"] / side["iterations"]),
                    *(megabytes(nbytes), number(nbytes / base) if base and nbytes else NONE),
                    percent(side["accuracy"]),
                ]
            )
    headings = (
        *("cell", "engine or system", "iteration, s", "sent, MB"),
        *("over the first's", "test accuracy"),
    )
    note = (
        "Sent: by the interfaces of all hosts, an iteration. Accuracy: of the first round, after "
        "the same few epochs, which say nothing of what a model could learn: only whether all "
        "stand at the same. " + " ".join(dict.fromkeys(_notes(result)))
    )
    return Table("All together", headings, rows, note.strip())


def first_table(result: Result) -> Table:
    """Make a table of the fastest in every cell, and by how much it is faster."""
    rows = []
    for cell in result["cells"]:
        seconds = {
            role: side["seconds"] / side["iterations"] for role, side in everybody(cell).items()
        }
        hopper_roles = [role for role in seconds if role in _OWN_ROLES]
        other_roles = [role for role in seconds if role not in _OWN_ROLES]
        if hopper_roles and other_roles:
            best, other = (
                min(roles, key=seconds.__getitem__) for roles in (hopper_roles, other_roles)
            )
            rows.append([cell["name"], best, other, number(seconds[other] / seconds[best])])
    return Table(
        "Who is first",
        ("cell", "fastest of Hopper's engines", "fastest of all others", "times as fast"),
        rows,
        "Medians of the rounds; the intervals stand above.",
    )


def everybody(cell: Any) -> dict[str, Any]:
    """Return the sides and other systems of a cell, by role."""
    return {**cell["sides"], **cell["others"]}


def _notes(result: Result) -> list[str]:
    return [note for cell in result["cells"] for note in cell["notes"]]


_TABLES: Final = (
    *(together_table, first_table, summary_table, speed_table),
    *(traffic_table, parity_table, rows_table, memory_table),
)
_SYSTEM_ROLES: Final = tuple(PEERS[name].role for name in SYSTEMS)

EXPERIMENTS: Final = (
    Experiment(
        name="baselines",
        title="Hopper's engines and those that they are compared with",
        published=(),
        grid=Grid(
            ("scattered", "uk-like", "products-like"),
            SHALLOW,
            scales={"scattered": 0.25, "uk-like": 0.05, "products-like": 0.1},
            hidden=(16, 128),
        ),
        tables=_TABLES,
        sides=(*OTHERS, *OWN),
        peers=SYSTEMS,
        scores=True,
        comparisons=(
            *((side.role, BASE.role) for side in (NAIVE, P3, *OWN)),
            *((side.role, P3.role) for side in OWN),
            *((side.role, system) for system in _SYSTEM_ROLES for side in OWN),
        ),
        draw=draw_speed,
        rounds=5,
    ),
    Experiment(
        name="baselines-typed",
        title="Hopper's typed engines and those that they are compared with",
        published=(),
        grid=Grid(
            tuple(TYPED_SCALES),
            ("rgcn",),
            scales=TYPED_SCALES,
            hidden=(64,),
            fanouts=(FANOUTS,),
            servers=(2,),
            shared_batch=GLOBAL_BATCH,
            cache_sizes=("10%",),
        ),
        tables=_TABLES,
        sides=(VANILLA, CACHED, LOCAL, RAF),
        peers=SYSTEMS,
        scores=True,
        comparisons=(
            *((RAF.role, side.role) for side in (VANILLA, CACHED)),
            (CACHED.role, VANILLA.role),
            *((side.role, system) for system in _SYSTEM_ROLES for side in (VANILLA, RAF)),
        ),
        draw=draw_speed,
        rounds=5,
    ),
)
