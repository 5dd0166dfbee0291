"""What an A/B found, for the terminal: two tables and a line on what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hopper.bench.machine import tell_machine
from hopper.bench.statistics import (
    BASELINES,
    Figures,
    engines_of,
    fewer_bytes,
    figures,
    label_of,
    measured_epochs,
    speed_up,
)
from hopper.bench.verdict import tell_bytes, tell_speed
from hopper.console_tables import print_table
from hopper.paired_ratio import Ratio
from hopper.traffic import CAUSES

REFUSED: Final = "refused"
_MEGABYTE = 1e6
_SHOWN: Final = 5e3
"""bytes from which on a cause gets a column of megabytes with two decimals"""


def print_results(console: Console, results: Mapping[str, Any], problems: Sequence[str]) -> None:
    """Print times with parity, traffic, and what was measured.

    Parameters
    ----------
    results: the content of results.json.
    problems: why engines are not equal; with any, no speed-up and no reduction is told.
    """
    print_table(console, times_table(results, problems))
    print_table(console, traffic_table(results, problems))
    console.print(describe_setting(results), soft_wrap=True, highlight=False)
    rounds = len({run["round"] for run in results["runs"]})
    if not problems:
        for sentence in conclusions(results):
            console.print(sentence, soft_wrap=True, highlight=False)
    if problems:
        console.print("No speed-up is told, because the engines did not compute the same:")
        for problem in problems:
            console.print(f"  {problem}", soft_wrap=True, highlight=False)
    elif rounds < 2:
        console.print("One round only: no ratio has an interval; use --rounds 2 or more.")


def conclusions(results: Mapping[str, Any]) -> list[str]:
    """For each engine, what the rounds show of it against the first baseline: time and bytes, only
    where the interval excludes 1, and whether its gradient is the reference's."""
    runs, parity = results["runs"], results["parity"]
    engines = engines_of(runs)
    baseline = next((name for name in BASELINES if name in engines), None)
    found = []
    for engine in engines:
        if baseline is None or engine == baseline:
            continue
        told = [
            tell_speed(engine, baseline, speed_up(runs, engine, baseline)),
            tell_bytes(engine, baseline, fewer_bytes(runs, engine, baseline)),
        ]
        difference = parity["max_relative_gradient_difference"].get(engine)
        judged = difference is not None and engine not in parity.get("not_judged", [])
        told.append(f"same gradient, within {_told_difference(difference)}" if judged else
                    "gradient not held to the reference's")  # fmt: skip
        found.append("; ".join(told))
    return found


def times_table(results: Mapping[str, Any], problems: Sequence[str]) -> Table:
    """Per engine: median epoch seconds, speed-ups with their interval, parity."""
    runs, parity = results["runs"], results["parity"]
    engines = engines_of(runs)
    baselines = [name for name in BASELINES if name in engines]
    measured = len(measured_epochs(runs[0]))
    title = f"Time: {_told_rounds(runs)} of {_count(measured, 'measured epoch')}"
    headings = ["median\nepoch, s", *(f"faster than\n{baseline}" for baseline in baselines)]
    table = _table(title, [*headings, "gradient\ndiffers", "loss\ndiffers"])
    for engine in engines:
        cells = [engine_name(runs, engine), f"{figures(runs, engine).seconds:.3g}"]
        for baseline in baselines:
            if engine == baseline:
                cells.append("1")
            else:
                cells.append(REFUSED if problems else _told(speed_up(runs, engine, baseline)))
        told = _told_difference(parity["max_relative_gradient_difference"].get(engine))
        again = parity.get("in_float64", {}).get(engine)
        if again is not None:
            told += f"\n64 bit: {_told_difference(again['difference'])}"
        cells.append(told)
        told = _told_difference(parity["max_relative_loss_difference"].get(engine))
        losses_again = parity.get("losses_in_float64", {}).get(engine)
        if losses_again is not None:
            told += f"\n64 bit: {_told_difference(losses_again)}"
        cells.append(told)
        table.add_row(*cells)
    return table


def engine_name(runs: Sequence[Mapping[str, Any]], label: str) -> str:
    """A label, and whether it stands for an approximation."""
    exact = all(run.get("exact", True) for run in runs if label_of(run) == label)
    name = label.replace(":", "\n  ")
    return name if exact else f"{name}\n  approximate"


def traffic_table(results: Mapping[str, Any], problems: Sequence[str]) -> Table:
    """Per engine: an epoch's bytes by cause over all ranks, remote rows, reduction."""
    engines = engines_of(results["runs"])
    measured = {engine: figures(results["runs"], engine) for engine in engines}
    baseline = next((name for name in BASELINES if name in engines), None)
    causes = [
        cause for cause in CAUSES if any(own.bytes[cause] >= _SHOWN for own in measured.values())
    ]
    headings = [*causes, "all", "rows\nfetched"]
    headings += ["features\nreduced"] if baseline is not None else []
    table = _table("Traffic between servers, an epoch, MB", headings)
    for engine, own in measured.items():
        sent = [own.bytes[cause] for cause in causes]
        cells = [f"{value / _MEGABYTE:,.2f}" for value in (*sent, sum(own.bytes.values()))]
        cells.append(f"{own.rows['remote_unique']:,.0f}")
        if baseline is not None:
            refused = bool(problems) and engine != baseline
            cells.append(REFUSED if refused else _told_factor(measured[baseline], own))
        table.add_row(engine_name(results["runs"], engine), *cells)
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    """A column of engines, then numbers; fits a terminal of 80 columns."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
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
        f"{tell_machine(machine)}; "
        f"{dataset['name']}: {nodes:,} nodes, {edges:,} edges; {partition['method']} over "
        f"{partition['servers']} servers on {_told_network(machine)}: {shares or 'no measures'}"
    )


def _told_network(machine: Mapping[str, Any]) -> str:
    """Where servers and ranks ran: loopback, or emulated hosts as they were asked for."""
    emulation = machine.get("emulation") or {}
    if not emulation.get("effective"):
        return "loopback"
    rate, cpus, memory = (emulation[key] for key in ("link_rate", "host_cpus", "host_memory"))
    bounds = [
        "links without a rate" if rate == "none" else f"links of {rate}",
        f"{cpus:g} CPUs each" if cpus is not None else "",
        f"{memory / 2**20:g} MiB each" if memory is not None else "",
    ]
    return f"emulated hosts ({', '.join(bound for bound in bounds if bound)})"


def _told(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f}\n({ratio.low:.2f}-{ratio.high:.2f})"


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
