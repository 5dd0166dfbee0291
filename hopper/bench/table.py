"""The results of an A/B for the terminal: two tables, and sentences about what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hopper.bench.machine import tell_machine
from hopper.bench.statistics import (
    Figures,
    engines_of,
    fewer_bytes,
    figures,
    label_of,
    measured_epochs,
    speed_up,
)
from hopper.bench.verdict import tell_bytes, tell_speed
from hopper.cluster.traffic import CAUSES
from hopper.config.engines import COMPARED_WITH
from hopper.display.console_tables import print_table
from hopper.timing.paired_ratio import Ratio

REFUSED: Final = "refused"
_SHOWN: Final = 5e3
"""A cause gets a column, in megabytes with two decimals, from this number of bytes on."""


def print_results(console: Console, results: Mapping[str, Any], problems: Sequence[str]) -> None:
    """Print times with parity, traffic, and what was measured.

    With any problem, which says why engines are not equal, no speed-up and no reduction is printed.
    """
    print_table(console, times_table(results, problems))
    print_table(console, traffic_table(results, problems))
    lines = [describe_setting(results)]
    if problems:
        lines.append("No speed-up is told, because the engines did not compute the same:")
        lines += [f"  {problem}" for problem in problems]
    else:
        lines += conclusions(results)
        if len({run["round"] for run in results["runs"]}) < 2:
            lines.append("One round only: no ratio has an interval; use --rounds 2 or more.")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def conclusions(results: Mapping[str, Any]) -> list[str]:
    """Compare each engine with the first baseline, in one sentence about time, bytes and gradient.

    A difference is reported only if its interval excludes 1.
    """
    runs, parity = results["runs"], results["parity"]
    baseline = next(iter(_baselines(runs)), None)
    sentences = []
    for engine in engines_of(runs):
        if baseline is None or engine == baseline:
            continue
        difference = parity["max_relative_gradient_difference"].get(engine)
        within = _format_difference(difference)
        if engine in parity.get("in_float64", {}):
            exact = _format_difference(parity["in_float64"][engine]["difference"])
            within += f" in float32 and {exact} in float64"
        is_judged = difference is not None and engine not in parity.get("not_judged", [])
        parts = (
            tell_speed(engine, baseline, speed_up(runs, engine, baseline)),
            tell_bytes(engine, baseline, fewer_bytes(runs, engine, baseline)),
            f"same gradient, within {within}" if is_judged
            else "gradient not held to the reference's",
        )  # fmt: skip
        sentences.append("; ".join(parts))
    return sentences


def times_table(results: Mapping[str, Any], problems: Sequence[str]) -> Table:
    """Make the table of times: by engine, median epoch seconds, speed-ups with interval, parity."""
    runs, parity = results["runs"], results["parity"]
    baselines = _baselines(runs)
    rounds = _count(len({run["round"] for run in runs}), "round")
    epochs = _count(len(measured_epochs(runs[0])), "measured epoch")
    headings = ["median\nepoch, s", *(f"faster than\n{baseline}" for baseline in baselines)]
    table = _table(f"Time: {rounds} of {epochs}", [*headings, "gradient\ndiffers", "loss\ndiffers"])
    for engine in engines_of(runs):
        ratios = [
            "1" if engine == baseline
            else REFUSED if problems
            else _format_ratio(speed_up(runs, engine, baseline))
            for baseline in baselines
        ]  # fmt: skip
        seconds = f"{figures(runs, engine).seconds:.3g}"
        table.add_row(_name(runs, engine), seconds, *ratios, *_parity_cells(parity, engine))
    return table


def _parity_cells(parity: Mapping[str, Any], engine: str) -> tuple[str, str]:
    """Write how far gradients and losses differ, and what float64 says of it."""
    gradient = _format_difference(parity["max_relative_gradient_difference"].get(engine))
    loss = _format_difference(parity["max_relative_loss_difference"].get(engine))
    spread = parity.get("spread", {}).get(engine)
    if spread is not None:
        gradient += f"\nspread: {_format_difference(spread)}"
    again = parity.get("in_float64", {}).get(engine)
    if again is not None:
        gradient += f"\n64 bit: {_format_difference(again['difference'])}"
        loss += f"\n64 bit: {_format_difference(parity.get('losses_in_float64', {}).get(engine))}"
    elif spread is not None:
        gradient += "\n64 bit: not run"
    return gradient, loss


def traffic_table(results: Mapping[str, Any], problems: Sequence[str]) -> Table:
    """Make the table of traffic: by engine, an epoch's bytes by cause and remote rows."""
    runs = results["runs"]
    by_engine = {engine: figures(runs, engine) for engine in engines_of(runs)}
    baseline = next(iter(_baselines(runs)), None)
    causes = [c for c in CAUSES if any(side.bytes[c] >= _SHOWN for side in by_engine.values())]
    headings = [*causes, "all", "rows\nfetched", *(["features\nreduced"] if baseline else [])]
    table = _table("Traffic between servers, an epoch, MB", headings)
    for engine, side in by_engine.items():
        amounts = [*(side.bytes[cause] for cause in causes), sum(side.bytes.values())]
        cells = [f"{value / 1e6:,.2f}" for value in amounts]
        cells.append(f"{side.rows['remote_unique']:,.0f}")
        if baseline is not None:
            factor = feature_reduction(by_engine[baseline], side)
            text = "none sent" if factor is None else f"{factor:.2f} x"
            cells.append(REFUSED if problems and engine != baseline else text)
        table.add_row(_name(runs, engine), *cells)
    return table


def feature_reduction(baseline: Figures, engine: Figures) -> float | None:
    """Divide the baseline's feature bytes by an engine's. None if the engine sends none."""
    sent = engine.bytes["feature"]
    return baseline.bytes["feature"] / sent if sent else None


def describe_setting(results: Mapping[str, Any]) -> str:
    """Describe machine, graph and partition in one line."""
    machine, dataset, partition = (results[key] for key in ("machine", "dataset", "partition"))
    nodes = sum(kind["count"] for kind in dataset["node_types"].values())
    edges = sum(dataset["relations"].values())
    locality = partition["locality"]
    measures = {
        "cut": partition["edge_cut"],
        "R_micro": locality["micrograph"],
        "R_sub": locality["subgraph"],
    }
    shares = [f"{name} {value:.1%}" for name, value in measures.items() if value is not None]
    return (
        f"{tell_machine(machine)}; "
        f"{dataset['name']}: {nodes:,} nodes, {edges:,} edges; {partition['method']} over "
        f"{partition['servers']} servers on {_describe_network(machine.get('emulation') or {})}: "
        f"{', '.join(shares) or 'no measures'}"
    )


def _describe_network(emulation: Mapping[str, Any]) -> str:
    """Describe the network of servers and ranks: loopback, or the emulated hosts."""
    if not emulation.get("effective"):
        return "loopback"
    rate, cpus, memory = (emulation[key] for key in ("link_rate", "host_cpus", "host_memory"))
    bounds = ["links without a rate" if rate == "none" else f"links of {rate}"]
    bounds += [] if cpus is None else [f"{cpus:g} CPUs each"]
    bounds += [] if memory is None else [f"{memory / 2**20:g} MiB each"]
    return f"emulated hosts ({', '.join(bounds)})"


def _baselines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in COMPARED_WITH if name in engines_of(runs)]


def _name(runs: Sequence[Mapping[str, Any]], label: str) -> str:
    """Write a label in several lines, and whether the engine is approximate."""
    exact = all(run.get("exact", True) for run in runs if label_of(run) == label)
    name = label.replace(":", "\n  ")
    return name if exact else f"{name}\n  approximate"


def _table(title: str, headings: Sequence[str]) -> Table:
    """Make a table with a column of engines and columns of numbers, for 80 columns of text."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _format_ratio(ratio: Ratio) -> str:
    interval = "" if ratio.low is None else f"\n({ratio.low:.2f}-{ratio.high:.2f})"
    return f"{ratio.mean:.2f}{interval}"


def _format_difference(value: Any) -> str:
    # results.json holds "nan" and "inf" as words.
    return "not checked" if value is None else f"{float(value):.1e}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
