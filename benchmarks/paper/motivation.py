"""What gathering costs and what it saves: the tables of HopGNN, sections 3.1 and 7.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.tables import NONE, mean_of, megabytes, number, percent


def stages_table(result: Result) -> Table:
    """Make a table of a rank's time by stage, and of what crosses the network."""
    headings = (
        *("cell", "epoch, s", "gathering", "sampling and computing", "the rest"),
        *("features, MB", "topology, MB"),
    )
    rows = []
    for cell in result["cells"]:
        side = next(iter(cell["sides"].values()))
        seconds = side["stage_seconds"]
        total = sum(seconds.values()) or 1.0
        gather, rest = seconds["gather"] / total, (seconds["sample"] + seconds["compute"]) / total
        rows.append(
            [
                cell["name"],
                number(side["seconds"]),
                percent(gather),
                percent(rest),
                percent(1 - gather - rest),
                megabytes(side["bytes"]["feature"]),
                megabytes(side["bytes"]["topology"]),
            ]
        )
    note = (
        "Shares of the stages' time, mean over ranks; gathering holds local rows too. Megabytes "
        "are of a rank and iteration; topology is replicated, so none of it moves."
    )
    return Table("Where the time of model-centric training goes", headings, rows, note)


def alpha(cell: Mapping[str, Any]) -> float | None:
    """Return the bytes a rank fetches in an iteration of model-centric training, over those of the
    model."""
    side = next(iter(cell["sides"].values()))
    return float(side["bytes"]["feature"]) / float(cell["parameter_bytes"])


def naive_bytes(cell: Mapping[str, Any]) -> float | None:
    """Return the bytes of naive migration, all causes together, over those of model-centric
    training."""
    base, naive = (sum(side["bytes"].values()) for side in cell["sides"].values())
    return naive / base if base else None


def alpha_table(result: Result) -> Table:
    """Make a table of the ratio alpha by model."""
    rows = []
    for cell in result["cells"]:
        side = next(iter(cell["sides"].values()))
        rows.append(
            [
                cell["name"],
                str(cell["layers"]),
                megabytes(cell["parameter_bytes"]),
                megabytes(side["bytes"]["feature"]),
                number(alpha(cell)),
                str(cell["batch_size"]),
            ]
        )
    headings = ("cell", "layers", "model, MB", "features fetched, MB", "alpha", "batch")
    note = (
        "Alpha: features fetched by a rank in an iteration over the model's parameters, in bytes."
    )
    return Table("Features against the model", headings, rows, note)


def miss_table(result: Result) -> Table:
    """Make a table of means over the cells: miss rate, rows fetched, requests and gathering
    time."""
    roles = list(result["cells"][0]["sides"])
    rows = []
    for role in roles:
        miss = mean_of(result, role, lambda side: side["miss_rate"])
        rows.append(
            [
                role,
                percent(miss),
                number(mean_of(result, role, lambda side: side["rows"]["remote_unique"])),
                number(mean_of(result, role, lambda side: side["gathers"])),
                number(mean_of(result, role, lambda side: side["stage_seconds"]["gather"])),
            ]
        )
    headings = (
        *("side", "miss rate", "rows fetched", "requests to others"),
        "gathering, s an epoch",
    )
    note = (
        "Means over all cells; rows and requests of a rank and iteration. Miss rate: input rows "
        "that live on another server over all input rows, before pre-gathering removes repeats."
    )
    return Table("On average", headings, rows, note)


def reductions_table(result: Result) -> Table:
    """Make a table of what +MG takes off model-centric gathering, and +PG off +MG."""
    headings = ("cell", "gathering time: +MG", "rows fetched: +PG", "requests: +PG")
    rows = []
    for cell in result["cells"]:
        base, mg, pg = (cell["sides"][role] for role in ("model-centric", "+MG", "+PG"))
        rows.append(
            [
                cell["name"],
                _times(base["stage_seconds"]["gather"], mg["stage_seconds"]["gather"]),
                _times(mg["rows"]["remote_unique"], pg["rows"]["remote_unique"]),
                _times(mg["gathers"], pg["gathers"]),
            ]
        )
    note = "Times less: gathering time against model-centric, rows and requests against +MG."
    return Table("Reductions", headings, rows, note)


def _times(before: float | None, after: float | None) -> str:
    return NONE if not before or not after else f"{before / after:.2f} x"
