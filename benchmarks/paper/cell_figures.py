"""The figures of one cell, from what its A/B wrote: times, ratios, bytes beside their bounds, rows,
memory.

The lower bound of feature bytes is the number of rows a rank fetched in an iteration, each once,
times the bytes of a row; that of gradient bytes is 2 (N - 1) / N times the parameters, for every
rank and iteration (what a ring all-reduce sends). Bytes are compared over all epochs of all timed
runs, times over the measured ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from hopper.bench.statistics import figures, label_of, measured_epochs, speed_up
from hopper.paired_ratio import Ratio
from hopper.traffic import CAUSES
from hopper.train.results import main_score

MIB: Final = 2**20
SINGLE_STEP: Final = ("model_centric", "zero_hop", "locality")

Record = Mapping[str, Any]
"""the content of a cell's file"""


def cell_figures(record: Record, comparisons: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return one entry of ``cells`` in result.json.

    Parameters
    ----------
    comparisons: pairs of roles (faster, baseline); there is no ratio if the sides of the cell did
        not compute the same.
    """
    results = record["results"]
    dataset, partition = results["dataset"], results["partition"]
    nodes = sum(kind["count"] for kind in dataset["node_types"].values())
    return {
        **record["cell"],
        "date": record["date"],
        "commit": record["commit"],
        "nodes": nodes,
        "edges": sum(dataset["relations"].values()),
        "row_bytes": row_bytes(dataset),
        "parameter_bytes": record["parameter_bytes"],
        "edge_cut": partition["edge_cut"],
        "locality": partition["locality"],
        "emulation": results["machine"].get("emulation"),
        "rounds": len({run["round"] for run in results["runs"]}),
        "problems": list(record["problems"]),
        "parity": {role: _parity(results, label) for role, label in record["sides"].items()},
        "scout": record["scout"],
        "auto": record.get("auto"),
        "sides": {
            role: side_figures(record, role, nodes) for role, label in record["sides"].items()
        },
        "others": {role: other_figures(record, name) for role, name in _peers(record).items()},
        "notes": record.get("notes", []),
        "ratios": [
            {"role": role, "baseline": baseline, **_ratio(record, role, baseline)}
            for role, baseline in comparisons
            if baseline in record["sides"] or baseline in _peers(record)
        ],
        "extra": record["extra"],
    }


def _parity(results: Mapping[str, Any], label: str) -> dict[str, float | None]:
    parity = results["parity"]
    in_float64 = parity.get("in_float64", {}).get(label)
    return {
        "gradient": parity["max_relative_gradient_difference"].get(label),
        "gradient_in_float64": in_float64 and in_float64["difference"],
        "loss": parity["max_relative_loss_difference"].get(label),
        "loss_in_float64": parity.get("losses_in_float64", {}).get(label),
    }


def _peers(record: Record) -> Mapping[str, str]:
    """Return the labels of other systems by role; cells of older commits have none."""
    peers: Mapping[str, str] = record.get("peers", {})
    return peers


def other_figures(record: Record, label: str) -> dict[str, Any]:
    """Return the figures of another system."""
    label_runs = [run for run in record["guests"] if label_of(run) == label]
    epochs = [epoch for run in label_runs for epoch in measured_epochs(run)]
    return {
        "label": label,
        "seconds": median(fmean(e["seconds"] for e in measured_epochs(run)) for run in label_runs),
        "iterations": fmean(epoch["iterations"] for epoch in epochs),
        "interface_bytes": _interface_bytes(
            [epoch["nic_bytes"] for run in label_runs for epoch in run["epochs"]], label_runs
        ),
        "accuracy": main_score(label_runs[0], "test"),
    }


def _interface_bytes(
    sent: Sequence[Sequence[int] | None], runs: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return the bytes that all interfaces sent in an iteration, mean over whole runs.

    Parameters
    ----------
    sent: by host, in parts that make up the runs; an entry of None = they were not read.
    """
    totals = [sum(host_bytes) for host_bytes in sent if host_bytes is not None]
    if len(totals) < len(sent):
        return None
    return sum(totals) / sum(epoch["iterations"] for run in runs for epoch in run["epochs"])


def side_figures(record: Record, role: str, nodes: int) -> dict[str, Any]:
    """Return what one side of a cell measured.

    Rows, gathers and bytes are means of a rank and iteration, of the measured epochs.
    """
    results, label = record["results"], record["sides"][role]
    label_runs = [run for run in results["runs"] if label_of(run) == label]
    ranks = len(label_runs[0]["peak_rss_mib"])
    epochs = [epoch for run in label_runs for epoch in measured_epochs(run)]
    turns = ranks * fmean(epoch["iterations"] for epoch in epochs)
    per_epoch = figures(results["runs"], label)
    rows = {kind: value / turns for kind, value in per_epoch.rows.items()}
    rows_held = record["held"][role]
    # Under raf some gradients have a single owner and need no sum.
    is_raf = label.startswith("raf")
    all_turns = ranks * sum(epoch["iterations"] for epoch in label_runs[0]["epochs"])
    size = row_bytes(results["dataset"])
    return {
        "label": label,
        "exact": all(run.get("exact", True) for run in label_runs),
        "ranks": ranks,
        "seconds": per_epoch.seconds,
        "iterations": fmean(epoch["iterations"] for epoch in epochs),
        "stage_seconds": per_epoch.stage_seconds,
        # Cells of older commits do not tell.
        "busiest_cpu_seconds": fmean(max(epoch.get("cpu_seconds", [0.0])) for epoch in epochs),
        "bytes": {cause: per_epoch.bytes[cause] / turns for cause in CAUSES},
        "rows": rows,
        "lookups": _lookups(epochs),
        "input_share": (rows["local"] + rows["remote"]) / nodes,
        "miss_rate": _share(rows["remote"], rows["local"] + rows["remote"]),
        "gathers": None if rows_held["gathers"] is None else rows_held["gathers"] / all_turns,
        "learnable": rows_held.get("learnable"),
        "bounds": _bounds(label_runs, ranks, size, None if is_raf else record["parameter_bytes"]),
        "interface_bytes": _interface_bytes([run["nic_bytes"] for run in label_runs], label_runs),
        "accuracy": main_score(label_runs[0], "test"),
        "peak_rss_mib": max(value for run in label_runs for value in run["peak_rss_mib"]),
        "fetched_mib": _scale(size, rows["remote_unique"] / _steps(label_runs[0], ranks) / MIB),
        "work": record.get("work", {}).get(role, []),
        "pass_mib": _scale(rows_held["largest_pass_rows"], None if size is None else size / MIB),
        "epochs": [
            {
                "seconds": [run["epochs"][index]["seconds"] for run in label_runs],
                "decisions": [run["epochs"][index].get("decisions") or {} for run in label_runs],
            }
            for index in range(len(label_runs[0]["epochs"]))
        ],
    }


def _lookups(epochs: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Sum up [hits, misses] of all epochs by node type."""
    lookups: dict[str, list[int]] = {}
    for epoch in epochs:
        # Cells of older commits do not tell.
        for node_type, counts in epoch.get("lookups", {}).items():
            counts_so_far = lookups.setdefault(node_type, [0, 0])
            lookups[node_type] = [counts_so_far[0] + counts[0], counts_so_far[1] + counts[1]]
    return lookups


def row_bytes(dataset: Mapping[str, Any]) -> int | None:
    """Return the bytes of one row of features. None without features, or if types differ."""
    sizes = {
        int(kind["feature_dim"]) * np.dtype(kind["feature_dtype"]).itemsize
        for kind in dataset["node_types"].values()
        if kind["feature_dim"]
    }
    return sizes.pop() if len(sizes) == 1 else None


def _bounds(
    runs: Sequence[Mapping[str, Any]], ranks: int, size: int | None, parameter_bytes: int | None
) -> dict[str, Any]:
    """Divide bytes sent by their lower bounds, over all ranks and epochs of all timed runs."""
    epochs = [epoch for run in runs for epoch in run["epochs"]]
    bytes_by_cause = {cause: sum(epoch["bytes"][cause] for epoch in epochs) for cause in CAUSES}
    feature = sum(epoch["rows"]["remote_unique"] for epoch in epochs) * (size or 0)
    iterations = sum(epoch["iterations"] for epoch in epochs)
    gradient = None
    if parameter_bytes is not None:
        gradient = 2 * (ranks - 1) * parameter_bytes * iterations
    nic = None
    if all(run["nic_bytes"] is not None for run in runs):
        nic = sum(sum(run["nic_bytes"]) for run in runs)
    others = sum(bytes_by_cause[cause] for cause in CAUSES if cause != "feature")
    return {
        "feature_over_bound": _share(bytes_by_cause["feature"], feature),
        "gradient_over_bound": None
        if gradient is None
        else _share(bytes_by_cause["gradient"], gradient),
        "nic_over_counted": None
        if nic is None
        else _share(nic, bytes_by_cause["feature"] + others),
        # Bytes that the interfaces sent, minus those counted under other causes.
        "nic_feature_over_bound": None if nic is None else _share(nic - others, feature),
    }


def _ratio(record: Record, role: str, baseline: str) -> dict[str, Any]:
    if record["problems"]:
        return {"mean": None, "low": None, "high": None, "rounds": None}
    sides = {**record["sides"], **_peers(record)}
    runs = [*record["results"]["runs"], *record.get("guests", [])]
    ratio: Ratio = speed_up(runs, sides[role], sides[baseline])
    return {"mean": ratio.mean, "low": ratio.low, "high": ratio.high, "rounds": ratio.rounds}


def _steps(run: Mapping[str, Any], ranks: int) -> int:
    """Return how many portions an iteration's fetched rows come and go in: the time steps of hop
    without pre-gathering; 1 for all that fetch an iteration's rows at once."""
    options = run["options"]
    if run["engine"] in SINGLE_STEP or options.get("pregather", True):
        return 1
    merge = options.get("merge")
    return ranks - (merge if isinstance(merge, int) else 0)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _scale(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value * factor
