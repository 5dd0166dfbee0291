"""One of Hopper's own experiments: whether adaptive merging is ever slower than none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed
from benchmarks.paper.experiment import Experiment, Result, Side, Table
from benchmarks.paper.tables import (
    NONE,
    bytes_table,
    parity_table,
    ratio_text,
    speed_table,
    summary_table,
)
from hopper.micrograph.merge_number import MERGE, TRIED
from hopper.paired_ratio import paired_ratio

OFF: Final = Side("off", "hop:merge=off")
ADAPTIVE: Final = Side("adaptive", "hop:merge=adaptive")


def settled_table(result: Result) -> Table:
    """Make a table of what adaptive merging costs while it compares, and of what it gains
    afterwards."""
    rows = []
    for cell in result["cells"]:
        sides = {role: cell["sides"][role]["epochs"] for role in (OFF.role, ADAPTIVE.role)}
        decisions = [epoch["decisions"] for epoch in sides[ADAPTIVE.role]]
        rounds = range(cell["rounds"])
        starts = [
            _find_settled_epoch([epoch_decisions[index] for epoch_decisions in decisions])
            for index in rounds
        ]
        last = len(decisions) - 1
        settled = {index: start for index, start in enumerate(starts) if start < last}
        rows.append(
            [
                cell["name"],
                ", ".join(str(decisions[-1][index][MERGE]) for index in rounds),
                ", ".join(
                    str(sum(TRIED in epoch_decisions[index] for epoch_decisions in decisions))
                    for index in rounds
                ),
                _ratio(cell, sides, dict.fromkeys(rounds, 0), last + 1),
                _ratio(cell, sides, settled, last),
                str(len(settled)),
            ]
        )
    headings = (
        *("cell", "dissolved at the end, by round", "epochs that compare, by round"),
        *("off / adaptive, all epochs", "off / adaptive, settled", "rounds settled"),
    )
    note = (
        "Above 1: merging is faster. All epochs: with the first and the last too, since an epoch "
        "that compares prepares nothing ahead of the next, which is only another time for the "
        "same work. Settled: from the second after the last that compares two numbers (the first "
        "prepares for itself and ahead) to the last but one, and the same ones of the other side; "
        "rounds that have none are left out."
    )
    return Table("Whole runs, and what is left once merging has settled", headings, rows, note)


def _find_settled_epoch(decisions: Sequence[Mapping[str, int]]) -> int:
    """Return the second epoch after the last one that compares, or the second of all if none
    compares."""
    return 2 + max((i for i, decision in enumerate(decisions) if TRIED in decision), default=-1)


def _ratio(
    cell: Mapping[str, Any],
    sides: Mapping[str, Sequence[Mapping[str, Any]]],
    starts: Mapping[int, int],
    stop: int,
) -> str:
    """Write the ratio of both sides' seconds, from an epoch on that ``starts`` names by round."""
    if cell["problems"]:
        return "refused"
    if not starts:
        return NONE
    off, adaptive = (
        [
            sum(epoch["seconds"][i] for epoch in sides[role][start:stop])
            for i, start in starts.items()
        ]
        for role in (OFF.role, ADAPTIVE.role)
    )
    return ratio_text(asdict(paired_ratio(off, adaptive)))


def _make_experiment(name: str, title: str, grid: Grid) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        published=(),
        grid=grid,
        tables=(summary_table, settled_table, speed_table, bytes_table, parity_table),
        shows_epochs=True,
        sides=(OFF, ADAPTIVE),
        comparisons=((ADAPTIVE.role, OFF.role),),
        draw=draw_speed,
        rounds=5,
        epochs=9,
        iterations=13,
    )


EXPERIMENTS: Final = (
    _make_experiment(
        "merging",
        "Adaptive merging against none",
        Grid(
            ("it-like", "uk-like", "products-like", "scattered"),
            ("gcn", "gat"),
            scales={"scattered": 0.05},
            fanouts=(5,),
        ),
    ),
    _make_experiment(
        "merging-deep",
        "Adaptive merging against none, deep models",
        Grid(("uk-like",), ("film", "deepgcn"), scales={"uk-like": 0.005}),
    ),
)
