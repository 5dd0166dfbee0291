"""Where an iteration of the cooperative engine spends its time, from the spans of a run.

usage: python benchmarks/iteration_profile.py --parts PARTITIONED --out DIR [--link-rate 1gbit]
[--fanouts 10,10,10] [--hidden 16] [--model sage] [--batch-size 1024]

Runs over emulated hosts (root is needed), leaves the first epoch out, and writes
``DIR/iteration_profile.json``: for every part of an iteration, wall and processor seconds, means
over ranks and iterations. A part's processor seconds are its thread's own; what is left of its wall
seconds is waiting: for the network, for other ranks, or for a processor that another rank has. Of
GraphSAGE it also tells the least that a rank's products, reading its input rows and its messages
could take (least_times.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from least_times import Rates, least_of_sage
from rich.console import Console
from rich.table import Table

from hopper.bench.emulate.hosts import emulate_hosts
from hopper.bench.emulate.request import make_request, parse_rate
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.bench.span_lines import log_files, log_lines
from hopper.partition import PartitionedGraph
from hopper.signal_handlers import end_on_signals
from hopper.whole_files import write_text

RESULT_FILE = "iteration_profile.json"
EPOCHS, ITERATIONS = 4, 6
_WORK = ("own", "destinations", "edges", "received_bytes")
LIMIT_SECONDS = 900.0
PARTS = (
    ("plan, ahead", "made beside the computing, in a thread of its own"),
    ("gather, ahead", "this server's input rows, in a thread of its own"),
    ("wait for the pipeline", ""),
    ("project", "of all layers, and picking what is sent"),
    ("exchange", "waiting for rows"),
    ("aggregate", "and what is made of the destinations' own rows"),
    ("backward", "without the gradients' way back"),
    ("gradients back", "waiting for them"),
    ("wait for ranks", "before the all-reduce"),
    ("all-reduce", ""),
    ("optimiser", ""),
)


def profile(run_dir: Path) -> dict[str, dict[str, float]]:
    """Return wall and processor seconds by part: means over ranks and iterations after epoch 0."""
    sums: defaultdict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0.0, "cpu": 0.0})
    turns = 0
    for file in log_files(run_dir / "spans"):
        for _, line in log_lines(file):
            if "span" not in line or line.get("epoch", 0) == 0:
                continue
            part = part_of(line)
            if part is None:
                continue
            _add(sums[part], line, 1.0)
            if part == "wait for the pipeline":
                turns += 1
            elif part == "gradients back":
                # The span lies within the backward pass.
                _add(sums["backward"], line, -1.0)
    return {
        name: {key: value / max(1, turns) for key, value in sums[name].items()} for name, _ in PARTS
    }


def work_of_layers(run_dir: Path) -> list[dict[str, float]]:
    """Return what plans say of each layer, first layer first: means over ranks and iterations after
    epoch 0."""
    plans = [
        line["layers"]
        for file in log_files(run_dir / "spans")
        for _, line in log_lines(file)
        if "layers" in line and line.get("epoch", 0) > 0
    ]
    return [
        {key: fmean(layer[key] for layer in of_plans) for key in _WORK}
        for of_plans in zip(*plans, strict=True)
    ]


def part_of(line: dict[str, Any]) -> str | None:
    """Return the part that a span is of; None for one that holds others."""
    operation = line.get("operation")
    if operation == "update" and "layer" not in line:
        return "optimiser"
    name: str | None = {
        ("wait", "pipeline"): "wait for the pipeline",
        ("sample", None): "plan, ahead",
        ("gather", "own rows"): "gather, ahead",
        ("compute", "project"): "project",
        ("compute", "aggregate"): "aggregate",
        ("compute", "backward"): "backward",
        ("sync", "partials"): "exchange",
        ("sync", "gradients of partials"): "gradients back",
        ("wait", "sync"): "wait for ranks",
        ("sync", None): "all-reduce",
    }.get((line["span"], operation))
    return name


def _add(total: dict[str, float], line: dict[str, float], sign: float) -> None:
    for key in total:
        total[key] += sign * line[key]


def parse() -> argparse.Namespace:
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--link-rate", default="1gbit")
    parser.add_argument("--fanouts", type=numbers, default=[10, 10, 10])
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--batch-size", type=int, default=1024)
    return parser.parse_args()


def main() -> int:
    """Run the command line."""
    options, console = parse(), Console()
    graph = PartitionedGraph.open(options.parts)
    values = {
        "data": {"partitioned": str(options.parts.absolute())},
        "model": {"name": options.model, "layers": len(options.fanouts), "hidden": options.hidden},
        "sampler": {"fanouts": options.fanouts},
        "train": {
            "engine": "cooperative",
            "batch_size": options.batch_size,
            "epochs": EPOCHS,
            "iterations_per_epoch": ITERATIONS,
            "evaluate_every": 0,
        },
    }
    with tempfile.TemporaryDirectory(prefix="iteration-profile-") as folder, end_on_signals():
        config, run_dir = Path(folder) / "config.json", Path(folder) / "run"
        config.write_text(json.dumps(values))
        with emulate_hosts(make_request(graph.book.servers, options.link_rate)) as cluster:
            if not cluster.effective:
                console.print(f"error: no emulated hosts: {cluster.why_not}")
                return 1
            summary = train_on_hosts(cluster, "profile", config, run_dir, [], LIMIT_SECONDS)
        parts, layers = profile(run_dir), work_of_layers(run_dir)
    measured_epochs = summary["epochs"][1:]
    iteration = sum(epoch["seconds"] for epoch in measured_epochs) / (
        ITERATIONS * len(measured_epochs)
    )
    values["data"]["partitioned"] = options.parts.name
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "config": values,
        "link_rate": options.link_rate,
        "ranks": graph.book.servers,
        "iteration_seconds": iteration,
        "parts": parts,
        "layers": layers,
    }
    if options.model == "sage":
        node = graph.schema.node_types[graph.schema.target_type()]
        widths = (
            node.feature_dim or 0,
            options.hidden,
            graph.schema.labels[graph.schema.target_type()].classes,
        )
        rate, rates = parse_rate(options.link_rate), Rates.measure()
        link = None if rate is None else rate / 8
        result["rates"] = asdict(rates)
        result["least"] = least_of_sage(layers, widths, rates, link)
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / RESULT_FILE, format_result(result))
    show(console, result)
    return 0


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the table."""
    table = Table("part", "wall, ms", "processor, ms", "")
    for name, label in PARTS:
        cost = result["parts"][name]
        table.add_row(name, f"{1e3 * cost['seconds']:.1f}", f"{1e3 * cost['cpu']:.1f}", label)
    console.print(table)
    for name, seconds in result.get("least", {}).items():
        console.print(f"{name}: {1e3 * seconds:.1f} ms at least", highlight=False)
    busy = sum(cost["cpu"] for cost in result["parts"].values())
    cores = result["machine"]["usable_cores"]
    floor = busy * result["ranks"] / cores
    console.print(
        f"an iteration takes {1e3 * result['iteration_seconds']:.0f} ms; the ranks' processor "
        f"seconds alone take {1e3 * floor:.0f} ms of {cores} cores"
    )


if __name__ == "__main__":
    sys.exit(main())
