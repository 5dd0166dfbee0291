"""The results of an A/B for the terminal: two tables, and a line about the setting."""

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
"""A cause gets a column, in megabytes with two decimals, from this number of bytes on."""


def print_results(console: Console, results: Mapping[str, Any], problems: Sequence[str]) -> None:
    """Print times with parity, traffic, and what was measured.

    Parameters
    ----------
    results: the content of results.json.
    problems: why engines are not equal; with any, no speed-up and no reduction is printed.
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
    """Compare each engine with the first baseline, in one sentence about time, bytes and gradient.

    A difference is reported only if its interval excludes 1.
    """
    runs, parity = results["runs"], results["parity"]
    engines = engines_of(runs)
    baseline = next((name for name in BASELINES if name in engines), None)
    sentences = []
    for engine in engines:
        if baseline is None or engine == baseline:
            continue
        parts = [
            tell_speed(engine, baseline, speed_up(runs, engine, baseline)),
            tell_bytes(engine, baseline, fewer_bytes(runs, engine, baseline)),
        ]
        difference = parity["max_relative_gradient_difference"].get(engine)
        judged = difference is not None and engine not in parity.get("not_judged", [])
        within = _format_difference(difference)
        if engine in parity.get("in_float64", {}):
            exact = _format_difference(parity["in_float64"][engine]["difference"])
            within += f" in float32 and {exact} in float64"
        parts.append(f"same gradient, within {within}" if judged else
                    "gradient not held to the reference's")  # fmt: skip
        sentences.append("; ".join(parts))
    return sentences


def times_table(results: Mapping[str, Any], problems: Sequence[str]) -> Table:
    """Make the table of times: by engine, median epoch seconds, speed-ups with interval, parity."""
    runs, parity = results["runs"], results["parity"]
    engines = engines_of(runs)
    baselines = [name for name in BASELINES if name in engines]
    epoch_count = len(measured_epochs(runs[0]))
    title = f"Time: {_describe_rounds(runs)} of {_count(epoch_count, 'measured epoch')}"
    headings = ["median\nepoch, s", *(f"faster than\n{baseline}" for baseline in baselines)]
    table = _table(title, [*headings, "gradient\ndiffers", "loss\ndiffers"])
    for engine in engines:
        cells = [engine_name(runs, engine), f"{figures(runs, engine).seconds:.3g}"]
        for baseline in baselines:
            if engine == baseline:
                cells.append("1")
            else:
                cells.append(
                    REFUSED if problems else _format_ratio(speed_up(runs, engine, baseline))
                )
        cells += _parity_cells(parity, engine)
        table.add_row(*cells)
    return table


def _parity_cells(parity: Mapping[str, Any], engine: str) -> list[str]:
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
    return [gradient, loss]


def engine_name(runs: Sequence[Mapping[str, Any]], label: str) -> str:
    """Write a label in several lines, and whether the engine is approximate."""
    exact = all(run.get("exact", True) for run in runs if label_of(run) == label)
    name = label.replace(":", "\n  ")
    return name if exact else f"{name}\n  approximate"


def traffic_table(results: Mapping[str, Any], problems: Sequence[str]) -> Table:
    """Make the table of traffic: by engine, an epoch's bytes by cause and remote rows."""
    engines = engines_of(results["runs"])
    figures_by_engine = {engine: figures(results["runs"], engine) for engine in engines}
    baseline = next((name for name in BASELINES if name in engines), None)
    causes = [
        cause
        for cause in CAUSES
        if any(
            engine_figures.bytes[cause] >= _SHOWN for engine_figures in figures_by_engine.values()
        )
    ]
    headings = [*causes, "all", "rows\nfetched"]
    headings += ["features\nreduced"] if baseline is not None else []
    table = _table("Traffic between servers, an epoch, MB", headings)
    for engine, engine_figures in figures_by_engine.items():
        amounts = [engine_figures.bytes[cause] for cause in causes]
        cells = [
            f"{value / _MEGABYTE:,.2f}" for value in (*amounts, sum(engine_figures.bytes.values()))
        ]
        cells.append(f"{engine_figures.rows['remote_unique']:,.0f}")
        if baseline is not None:
            refused = bool(problems) and engine != baseline
            cells.append(
                REFUSED if refused else _format_factor(figures_by_engine[baseline], engine_figures)
            )
        table.add_row(engine_name(results["runs"], engine), *cells)
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    """Make a table with a column of engines and columns of numbers, for 80 columns of text."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def feature_reduction(baseline: Figures, engine_figures: Figures) -> float | None:
    """Divide the baseline's feature bytes by an engine's. None if the engine sends none."""
    feature_bytes = engine_figures.bytes["feature"]
    return baseline.bytes["feature"] / feature_bytes if feature_bytes else None


def describe_setting(results: Mapping[str, Any]) -> str:
    """Describe machine, graph and partition in one line."""
    machine, dataset, partition = (results[key] for key in ("machine", "dataset", "partition"))
    nodes = sum(kind["count"] for kind in dataset["node_types"].values())
    edges = sum(dataset["relations"].values())
    locality = partition["locality"]
    shares_by_name = {
        "cut": partition["edge_cut"],
        "R_micro": locality["micrograph"],
        "R_sub": locality["subgraph"],
    }
    shares = ", ".join(
        f"{name} {value:.1%}" for name, value in shares_by_name.items() if value is not None
    )
    return (
        f"{tell_machine(machine)}; "
        f"{dataset['name']}: {nodes:,} nodes, {edges:,} edges; {partition['method']} over "
        f"{partition['servers']} servers on {_describe_network(machine)}: {shares or 'no measures'}"
    )


def _describe_network(machine: Mapping[str, Any]) -> str:
    """Describe the network of servers and ranks: loopback, or the emulated hosts."""
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


def _format_ratio(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f}\n({ratio.low:.2f}-{ratio.high:.2f})"


def _format_factor(baseline: Figures, engine_figures: Figures) -> str:
    factor = feature_reduction(baseline, engine_figures)
    return "none sent" if factor is None else f"{factor:.2f} x"


def _format_difference(value: Any) -> str:
    # results.json holds "nan" and "inf" as words.
    return "not checked" if value is None else f"{float(value):.1e}"


def _describe_rounds(runs: Sequence[Mapping[str, Any]]) -> str:
    return _count(len({run["round"] for run in runs}), "round")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
