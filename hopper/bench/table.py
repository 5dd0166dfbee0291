"""What an A/B found, for the terminal: two tables and a line on what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from hopper.bench.statistics import (
    BASELINES,
    Figures,
    Ratio,
    engines_of,
    figures,
    measured_epochs,
    speed_up,
)
from hopper.traffic import CAUSES

REFUSED: Final = "refused"
_MEGABYTE = 1e6


def print_results(console: Console, results: Mapping[str, Any], problems: Sequence[str]) -> None:
    """Print times with parity, traffic, and what was measured.

    Parameters
    ----------
    results: the content of results.json.
    problems: why engines are not equal; with any, no speed-up and no reduction is told.
    """
    console.print(times_table(results, problems))
    console.print(traffic_table(results, problems))
    console.print(describe_setting(results), soft_wrap=True, highlight=False)
    rounds = len({run["round"] for run in results["runs"]})
    if problems:
        console.print("No speed-up is told, because the engines did not compute the same:")
        for problem in problems:
            console.print(f"  {problem}", soft_wrap=True, highlight=False)
    elif rounds < 2:
        console.print("One round only: speed-ups have no interval; use --rounds 2 or more.")


def times_table(results: Mapping[str, Any], problems: Sequence[str]) -> Table:
    """Per engine: median epoch seconds, speed-ups with their interval, parity."""
    runs, parity = results["runs"], results["parity"]
    engines = engines_of(runs)
    baselines = [name for name in BASELINES if name in engines]
    measured = len(measured_epochs(runs[0]))
    table = Table(title=f"Time: {_told_rounds(runs)} of {_count(measured, 'measured epoch')}")
    table.add_column("engine")
    table.add_column("epoch, s\n(median)", justify="right")
    for baseline in baselines:
        table.add_column(f"speed-up over\n{baseline} (95 %)", justify="right")
    table.add_column("gradient\ndifference", justify="right")
    table.add_column("loss\ndifference", justify="right")
    for engine in engines:
        cells = [engine, f"{figures(runs, engine).seconds:.3g}"]
        for baseline in baselines:
            if engine == baseline:
                cells.append("1")
            else:
                cells.append(REFUSED if problems else _told(speed_up(runs, engine, baseline)))
        cells.append(_told_difference(parity["max_relative_gradient_difference"].get(engine)))
        cells.append(_told_difference(parity["max_relative_loss_difference"].get(engine)))
        table.add_row(*cells)
    return table


def traffic_table(results: Mapping[str, Any], problems: Sequence[str]) -> Table:
    """An engine a column; an epoch's bytes by cause over all ranks, remote rows, reduction."""
    engines = engines_of(results["runs"])
    measured = [figures(results["runs"], engine) for engine in engines]
    baseline = next((name for name in BASELINES if name in engines), None)
    table = Table(title="Traffic between servers, an epoch")
    table.add_column("")
    for engine in engines:
        table.add_column(engine, justify="right")
    for cause in CAUSES:
        if any(own.bytes[cause] for own in measured):
            table.add_row(
                f"{cause}, MB", *(f"{own.bytes[cause] / _MEGABYTE:,.2f}" for own in measured)
            )
    totals = (sum(own.bytes.values()) / _MEGABYTE for own in measured)
    table.add_row("all, MB", *(f"{total:,.2f}" for total in totals), end_section=True)
    for name, kind in (("remote rows read", "remote"), ("remote rows fetched", "remote_unique")):
        table.add_row(name, *(f"{own.rows[kind]:,.0f}" for own in measured))
    if baseline is not None:
        base = measured[engines.index(baseline)]
        table.add_row(
            "feature bytes reduced by",
            *(
                REFUSED if problems and engine != baseline else _told_factor(base, own)
                for engine, own in zip(engines, measured, strict=True)
            ),
        )
    return table


def feature_reduction(baseline: Figures, own: Figures) -> float | None:
    """Feature bytes of the baseline divided by an engine's; None where it sends none."""
    sent = own.bytes["feature"]
    return baseline.bytes["feature"] / sent if sent else None


def describe_setting(results: Mapping[str, Any]) -> str:
    """One line: machine, graph, partition."""
    machine, dataset, partition = (results[key] for key in ("machine", "dataset", "partition"))
    nodes = sum(kind["count"] for kind in dataset["node_types"].values())
    edges = sum(dataset["relations"].values())
    locality = partition["locality"]
    told = {
        "cut": partition["edge_cut"],
        "R_micro": locality["micrograph"],
        "R_sub": locality["subgraph"],
    }
    shares = ", ".join(f"{name} {value:.1%}" for name, value in told.items() if value is not None)
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB; "
        f"{dataset['name']}: {nodes:,} nodes, {edges:,} edges; {partition['method']} over "
        f"{partition['servers']} servers on loopback: {shares or 'no measures'}"
    )


def _told(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.2f} (no interval)"
    return f"{ratio.mean:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _told_factor(baseline: Figures, own: Figures) -> str:
    factor = feature_reduction(baseline, own)
    return "none sent" if factor is None else f"{factor:.2f} x"


def _told_difference(value: Any) -> str:
    # results.json holds "nan" and "inf" as words.
    return "not checked" if value is None else f"{float(value):.1e}"


def _told_rounds(runs: Sequence[Mapping[str, Any]]) -> str:
    return _count(len({run["round"] for run in runs}), "round")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
