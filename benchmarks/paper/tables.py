"""Tables of pages, made from result.json alone: speed, bytes beside their bounds, rows, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, Final

from benchmarks.paper.experiment import Result, Table
from hopper.traffic import CAUSES

NONE: Final = "—"
_MEGABYTE: Final = 1e6

Figures = Mapping[str, Any]


def speed_table(result: Result) -> Table:
    """Make a table of the baseline's median epoch and every ratio with its interval."""
    pairs = [(entry["role"], entry["baseline"]) for entry in result["summary"]]
    first = next(iter(result["cells"][0]["sides"]))
    headings = ["cell", f"{first}: epoch, s", *(f"{role} over {base}" for role, base in pairs)]
    rows = []
    for cell in result["cells"]:
        ratios = {(ratio["role"], ratio["baseline"]): ratio for ratio in cell["ratios"]}
        ratio_texts = [ratio_text(ratios[pair]) if pair in ratios else NONE for pair in pairs]
        rows.append([cell["name"], number(cell["sides"][first]["seconds"]), *ratio_texts])
    return Table(
        "Times faster",
        tuple(headings),
        rows,
        "In brackets the 95 % interval over paired rounds; none with a single round.",
    )


def summary_table(result: Result) -> Table:
    """Make a table of the least, mean and largest ratio of every comparison over the cells."""
    rows = [
        [
            f"{entry['role']} over {entry['baseline']}",
            *(number(entry[key]) for key in ("least", "mean", "most")),
            str(entry["cells"]),
            str(entry["above_one"]),
        ]
        for entry in result["summary"]
    ]
    headings = ("", "least", "geometric mean", "most", "cells", "interval above 1")
    return Table("In short", headings, rows)


def parity_table(result: Result) -> Table:
    """Make a table of every side's largest gradient and loss differences over the cells."""
    roles = list(dict.fromkeys(role for cell in result["cells"] for role in cell["parity"]))
    rows = []
    for role in roles:
        parities = [cell["parity"][role] for cell in result["cells"]]
        exact = all(cell["sides"][role]["exact"] for cell in result["cells"])
        worst = []
        for measure in ("gradient", "loss"):
            worst.append(_worst(parity[measure] for parity in parities))
            differences = [
                difference
                for parity in parities
                if (difference := parity[f"{measure}_in_float64"]) is not None
            ]
            worst.append(_worst(differences) if differences else "")
        rows.append([role if exact else f"{role} (approximate)", *worst])
    note = (
        "Largest relative difference over all cells to one process on the same roots and draws; "
        "measured again in float64 where that of float32 is above its limit."
    )
    headings = ("side", "gradients", "again in float64", "losses", "again in float64")
    return Table("Parity", headings, rows, note)


def bytes_table(result: Result) -> Table:
    """Make a table of feature and gradient bytes of a rank and iteration, with lower bounds."""
    headings = (
        *("cell", "side", "features, MB", "over bound", "interfaces over bound"),
        *("gradients, MB", "over bound", "models, MB"),
    )
    rows = []
    for cell, role, side in sides_of(result):
        bounds, bytes_by_cause = side["bounds"], side["bytes"]
        rows.append(
            [
                cell["name"],
                role,
                megabytes(bytes_by_cause["feature"]),
                _over(bounds["feature_over_bound"]),
                _over(bounds["nic_feature_over_bound"]),
                megabytes(bytes_by_cause["gradient"]),
                _over(bounds["gradient_over_bound"]),
                megabytes(bytes_by_cause["model"]),
            ]
        )
    note = (
        "Per rank and iteration. Bound of features: the remote rows fetched for an iteration, each "
        "once for a rank (without pre-gathering: once a time step), times the bytes of a row; of "
        "gradients: 2 (N - 1) / N times the parameters. Interfaces: what the hosts' network "
        "interfaces sent, less what is counted under other causes than features."
    )
    return Table("Bytes beside their lower bounds", headings, rows, note)


def traffic_table(result: Result) -> Table:
    """Make a table of the seconds of an iteration, and of the bytes of all ranks by cause, by
    side."""
    causes = [
        cause
        for cause in CAUSES
        if any(side["bytes"][cause] >= 1 for _, _, side in sides_of(result))
    ]
    headings = ("cell", "side", "iteration, s", *causes, "all", "times fewer")
    rows = []
    for cell, role, side in sides_of(result):
        ranks = side["ranks"]
        base = sum(next(iter(cell["sides"].values()))["bytes"].values())
        total_bytes = sum(side["bytes"].values())
        rows.append(
            [
                cell["name"],
                role,
                number(side["seconds"] / side["iterations"]),
                *(megabytes(ranks * side["bytes"][cause]) for cause in causes),
                megabytes(ranks * total_bytes),
                number(base / total_bytes if total_bytes else None),
            ]
        )
    note = "MB of an iteration, all ranks together; times fewer than the first side."
    return Table("Traffic", headings, rows, note)


def rows_table(result: Result) -> Table:
    """Make a table of an iteration's rows: their share of the graph, how many are remote and
    fetched."""
    headings = (
        *("cell", "side", "input rows", "of the graph", "remote"),
        *("fetched rows", "requests to others"),
    )
    rows = []
    for cell, role, side in sides_of(result):
        row_counts = side["rows"]
        rows.append(
            [
                cell["name"],
                role,
                f"{row_counts['local'] + row_counts['remote']:,.0f}",
                percent(side["input_share"]),
                percent(side["miss_rate"]),
                f"{row_counts['remote_unique']:,.0f}",
                number(side["gathers"]),
            ]
        )
    note = (
        "Means of a rank and iteration. A batch that touches most of the graph hides all locality. "
        "Requests: times that a rank turns to the other servers for features, asking all of them "
        "at once."
    )
    return Table("Rows", headings, rows, note)


def memory_table(result: Result) -> Table:
    """Make a table of a rank's peak memory and of the fetched rows held at once."""
    headings = (
        "cell",
        "side",
        "fetched rows held, MiB",
        "largest input, MiB",
        "peak of a rank, MiB",
    )
    rows = [
        [
            cell["name"],
            role,
            number(side["fetched_mib"]),
            number(side["pass_mib"]),
            f"{side['peak_rss_mib']:,.0f}",
        ]
        for cell, role, side in sides_of(result)
    ]
    note = (
        "Fetched rows held: remote rows that are in memory at once for an iteration (without "
        "pre-gathering: for a time step), mean over ranks and iterations: the temporary storage "
        "of section 5.2. Largest input: of a single forward pass, local rows included. Peak: "
        "resident memory of the whole process, libraries included."
    )
    return Table("Memory", headings, rows, note)


def sides_of(result: Result) -> list[tuple[Figures, str, Figures]]:
    """List every cell with every one of its sides."""
    return [(cell, role, side) for cell in result["cells"] for role, side in cell["sides"].items()]


def mean_of(result: Result, role: str, measure: Callable[[Figures], float | None]) -> float | None:
    """Return the mean of a measure of one side over the cells that have it."""
    values = [measure(cell["sides"][role]) for cell in result["cells"] if role in cell["sides"]]
    known_values = [value for value in values if value is not None]
    return fmean(known_values) if known_values else None


def graph_name(cell: Figures) -> str:
    """Write a cell's graph with its scale."""
    return cell["graph"] if cell["scale"] is None else f"{cell['graph']} at scale {cell['scale']:g}"


def ratio_text(ratio: Figures, places: int = 2) -> str:
    """Write a ratio with its interval, to so many decimal places, or that it is refused."""
    if ratio["mean"] is None:
        return "refused"
    mean, low, high = (
        f"{ratio[bound]:.{places}f}" if ratio[bound] is not None else None
        for bound in ("mean", "low", "high")
    )
    return f"{mean}" if low is None else f"{mean} ({low} to {high})"


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with some significant digits, or a dash for None."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def megabytes(value: float | None) -> str:
    """Write bytes as MB."""
    return NONE if value is None else number(value / _MEGABYTE)


def percent(value: float | None) -> str:
    """Write a share in per cent."""
    return NONE if value is None else f"{value:.1%}"


def _over(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _worst(values: Any) -> str:
    """Return the largest; "nan" and "inf" stand as words in JSON."""
    known_values = [value for value in values if value is not None]
    words = [value for value in known_values if isinstance(value, str)]
    if words:
        return words[0]
    return f"{max(known_values):.1e}" if known_values else NONE
