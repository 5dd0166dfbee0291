"""One, two and four ranks a host: a server's nodes dealt to its ranks in turn, against by locality.

usage: python benchmarks/second_level.py --graph GRAPH --out DIR CONFIG.toml [--hosts 2]
       [--ranks 1,2,4] [--engines A,B] [--rounds 5] [--link-rate 1gbit] [--section.key VALUE ...]

Divides a graph over hosts by METIS, once for each number of ranks a host with a second level, and
compares every engine on both placements with ``hopper bench ab``, in turns. The roots of an
iteration are the configuration's times the ranks, so that more ranks do more work in it.

Writes ``DIR/result.json`` with a line for each engine, number of ranks and placement (means over
rounds and measured epochs: input rows that a rank reads in an iteration, each once a pass; those of
them that other servers have; seconds; bytes between servers by cause; and how many times as fast as
in turn, with its interval over rounds), ``DIR/README.md`` and ``DIR/picture.webp``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).resolve().parents[1]))

from benchmarks.ab_command import compare_engines
from hopper.bench.machine import tell_machine
from hopper.bench.results import format_result
from hopper.bench.statistics import measured_epochs
from hopper.graph.directory import GraphDirectory
from hopper.paired_ratio import paired_ratio
from hopper.palette import hex_of, tint
from hopper.partition import partition_graph
from hopper.whole_files import write_text

ENGINES = "model_centric,hop,zero_hop,cooperative,locality,naive"
IN_TURN, BY_LOCALITY = PLACEMENTS = ("in turn", "by locality")


def divide(graph: GraphDirectory, folder: Path, hosts: int, ranks: int) -> Path:
    """Divide the graph over the hosts, unless that has been done, with a second level for the
    ranks."""
    out = folder / ("in-turn" if ranks == 1 else f"by-locality-{ranks}")
    if not out.exists():
        partition_graph(graph, out, hosts, ranks_per_server=ranks)
    return out


def compare(options: argparse.Namespace, parts: dict[int, Path], ranks: int) -> dict[str, Any]:
    """Measure every engine on both placements, and return the results of ``hopper bench ab``.

    Raises
    ------
    CalledProcessError: the comparison failed, or gradients differ.
    """
    contenders = options.engines.split(",")
    if ranks > 1:
        contenders += [f"{name}:partitioned={parts[ranks]}" for name in contenders]
    places = [f"--data.partitioned={parts[1]}", f"--cluster.ranks_per_server={ranks}"]
    return compare_engines(
        options.config,
        contenders,
        options.out / f"ranks-{ranks}",
        rounds=options.rounds,
        hosts=options.hosts,
        link_rate=options.link_rate,
        overrides=[*places, *options.overrides],
    )


def summarise(results: dict[str, Any], ranks: int, hosts: int) -> Iterator[dict[str, Any]]:
    """Yield a line for each engine and placement."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in results["runs"]:
        place = BY_LOCALITY if "partitioned=" in run["label"] else IN_TURN
        runs.setdefault((run["engine"], place), []).append(run)
    for (engine, place), engine_runs in sorted(
        runs.items(), key=lambda item: list(runs).index(item[0])
    ):
        epochs = [epoch for run in engine_runs for epoch in measured_epochs(run)]
        turns = hosts * ranks
        rows = {
            kind: fmean(epoch["rows"][kind] / epoch["iterations"] / turns for epoch in epochs)
            for kind in ("local", "remote_unique")
        }
        times = None
        if place == BY_LOCALITY:
            ratio = paired_ratio(_seconds(runs[engine, IN_TURN]), _seconds(engine_runs))
            times = {"mean": ratio.mean, "low": ratio.low, "high": ratio.high}
        yield {
            "engine": engine,
            "ranks_per_host": ranks,
            "placement": place,
            "rows_a_rank": round(sum(rows.values()), 1),
            "rows_of_other_servers_a_rank": round(rows["remote_unique"], 1),
            "epoch_seconds": round(fmean(_seconds(engine_runs)), 4),
            "times_as_fast_as_in_turn": times,
            "bytes": {
                cause: round(fmean(epoch["bytes"][cause] for epoch in epochs))
                for cause in epochs[0]["bytes"]
            },
        }


def _seconds(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Return a run's mean epoch by round."""
    ordered_runs = sorted(runs, key=lambda run: run["round"])
    return [fmean(epoch["seconds"] for epoch in measured_epochs(run)) for run in ordered_runs]


def page(result: dict[str, Any]) -> str:
    """Write a page of the result, in Markdown."""
    lines = [
        "# Several ranks a host",
        "",
        f"`{result['command']}`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}",
        f"- {result['graph']} over {result['hosts']} emulated hosts, METIS, links of "
        f"{result['link_rate']}; {result['rounds']} rounds; all hosts share this machine's cores, "
        "so that seconds grow with the work of all ranks",
        "- rows: input rows that a rank reads in an iteration; MB: between servers, an epoch",
        "- times as fast: by locality against in turn, 95 % interval over rounds",
        "",
        "![Rows and seconds](picture.webp)",
        "",
        "| ranks a host | engine | placement | rows a rank | of other servers | s an epoch | "
        "times as fast | features, MB | topology | models | gradients | partial |",
        "|---:|---|---|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for cell in result["cells"]:
        times = cell["times_as_fast_as_in_turn"]
        ratio_text = (
            f"{times['mean']:.2f} ({times['low']:.2f} to {times['high']:.2f})" if times else ""
        )
        causes = ("feature", "topology", "model", "gradient", "partial")
        megabytes = " | ".join(f"{cell['bytes'][cause] / 1e6:.2f}" for cause in causes)
        lines.append(
            f"| {cell['ranks_per_host']} | `{cell['engine']}` | {cell['placement']} | "
            f"{cell['rows_a_rank']:,.0f} | {cell['rows_of_other_servers_a_rank']:,.0f} | "
            f"{cell['epoch_seconds']:.3f} | {ratio_text} | {megabytes} |"
        )
    return "\n".join([*lines, ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw rows and seconds of a rank by engine, a bar for each number of ranks and placement."""
    figure = Figure((11, 4.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    cells = result["cells"]
    engines = list(dict.fromkeys(cell["engine"] for cell in cells))
    kinds = list(dict.fromkeys((cell["ranks_per_host"], cell["placement"]) for cell in cells))
    shades = {1: tint(hex_of("blue"), 2), 2: tint(hex_of("blue"), 1)}
    labels = {"rows_a_rank": "input rows a rank and iteration", "epoch_seconds": "s an epoch"}
    for axes, (key, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        for number, (ranks, placement) in enumerate(kinds):
            values = {
                cell["engine"]: cell[key]
                for cell in cells
                if (cell["ranks_per_host"], cell["placement"]) == (ranks, placement)
            }
            width = 0.8 / len(kinds)
            axes.bar(
                [index + (number - len(kinds) / 2 + 0.5) * width for index in range(len(engines))],
                [values[engine] for engine in engines],
                width,
                color=shades.get(ranks, hex_of("blue")),
                hatch="//" if placement == BY_LOCALITY else "",
                edgecolor="white",
                label=f"{ranks} a host" + ("" if ranks == 1 else f", {placement}"),
            )
        axes.set_xticks(range(len(engines)), engines, rotation=20)
        axes.set_ylabel(label)
    axes.legend(fontsize="small")
    figure.savefig(file)


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Parse the options, and the words that override keys of the configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--graph", type=Path, required=True, help="graph directory")
    parser.add_argument("--out", type=Path, required=True, help="goes on where it was ended")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", default="1,2,4", help="of a host, one after the other")
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link-rate", default="1gbit", help="loopback: no emulated hosts")
    return parser.parse_known_args()


def main() -> int:
    """Run the command line."""
    options, options.overrides = parse()
    graph = GraphDirectory.open(options.graph)
    options.out.mkdir(parents=True, exist_ok=True)
    numbers = [int(word) for word in options.ranks.split(",")]
    parts = {number: divide(graph, options.out, options.hosts, number) for number in {1, *numbers}}
    cells: list[dict[str, Any]] = []
    for ranks in numbers:
        results = compare(options, parts, ranks)
        cells += summarise(results, ranks, options.hosts)
        options_told = {
            "--graph": options.graph.name,
            "--out": "DIR",
            "--link-rate": options.link_rate,
        }
        words = [options.config.name, *(word for pair in options_told.items() for word in pair)]
        result = {
            "schema": 1,
            "benchmark": "second_level",
            "date": datetime.now(UTC).date().isoformat(),
            "command": f"python benchmarks/second_level.py {shlex.join(words + options.overrides)}",
            **{key: results[key] for key in ("commit", "machine", "versions")},
            "graph": graph.schema.name,
            "hosts": options.hosts,
            "link_rate": options.link_rate,
            "rounds": options.rounds,
            "config": {key: results["config"][key] for key in ("model", "sampler", "train")},
            "cells": cells,
        }
        write_text(options.out / "result.json", format_result(result))
        write_text(options.out / "README.md", page(result))
        draw(result, options.out / "picture.webp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
