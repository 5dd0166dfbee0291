"""How near `hopper plan` comes to measured epochs.

usage: python benchmarks/plan_accuracy.py --out DIR [--only "NAME;NAME"] [--engines A,B]
       [--scale 0.25] [--epochs 5]

Each setting is a graph, its division, and emulated hosts (root is needed) with links of some rate,
bounded so that all of them together have the cores of this machine. Engines are planned one by one
and then trained on the hosts; the first epoch warms up, in the last nothing is prepared ahead, and
the median of the others is compared.
Nothing of the planner was fitted on any setting. Aimed at: seconds within 15 %, bytes within 5 %.

Writes ``DIR/result.json``, ``DIR/README.md`` and ``DIR/picture.webp``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from hopper.bench.emulate.hosts import EmulatedCluster, emulate_hosts
from hopper.bench.emulate.request import make_request, parse_rate
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.machine import benchmark_header, tell_machine
from hopper.bench.results import format_result
from hopper.bench.statistics import measured_epochs
from hopper.config import make_config
from hopper.engines import Request
from hopper.features import open_graph
from hopper.graph import GraphDirectory
from hopper.graph.synthesise import make
from hopper.partition import partition_graph
from hopper.rehearsal.cluster_plan import AskedCluster, on_cluster, plan_cluster
from hopper.rehearsal.estimate import Estimate
from hopper.signal_handlers import end_on_signals
from hopper.traffic import CAUSES
from hopper.train.rank import make_deterministic
from hopper.whole_files import write_text

ENGINES = ("model_centric", "zero_hop", "hop", "cooperative")
ITERATIONS, LIMIT_SECONDS = 20, 900.0
LATENCY = 5e-5
SECONDS_GOAL, BYTES_GOAL = 0.15, 0.05


@dataclass(frozen=True)
class Setting:
    """A cluster, and what is trained on it."""

    name: str
    preset: str
    servers: int
    ranks_per_server: int
    link_rate: str
    method: str = "metis"
    model: str = "sage"
    hidden: int = 16
    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 256


SETTINGS = (
    Setting("arxiv 2 x 1, 1 Gbit/s", "arxiv-like", 2, 1, "1gbit"),
    Setting("arxiv 2 x 1, 100 Mbit/s", "arxiv-like", 2, 1, "100mbit"),
    Setting("arxiv 2 x 2, 1 Gbit/s", "arxiv-like", 2, 2, "1gbit"),
    Setting("arxiv 4 x 1, 1 Gbit/s", "arxiv-like", 4, 1, "1gbit"),
    Setting("arxiv 4 x 2, 200 Mbit/s", "arxiv-like", 4, 2, "200mbit", batch_size=128),
    Setting("arxiv 2 x 1, random", "arxiv-like", 2, 1, "1gbit", method="random"),
    Setting("arxiv 2 x 1, hidden 128", "arxiv-like", 2, 1, "1gbit", hidden=128),
    Setting("arxiv 2 x 1, GAT", "arxiv-like", 2, 1, "1gbit", model="gat"),
    Setting("uk 2 x 1, 1 Gbit/s", "uk-like", 2, 1, "1gbit"),
    Setting("uk 2 x 1, 100 Mbit/s", "uk-like", 2, 1, "100mbit"),
    Setting("uk 4 x 1, 500 Mbit/s", "uk-like", 4, 1, "500mbit"),
    Setting("uk 2 x 2, 3 hops", "uk-like", 2, 2, "500mbit", fanouts=(10, 10, 5)),
    Setting("uk 2 x 1, GCN", "uk-like", 2, 1, "500mbit", model="gcn"),
    Setting("uk 4 x 1, random", "uk-like", 4, 1, "1gbit", method="random"),
)


def divide(setting: Setting, scale: float, work: Path) -> Path:
    """Divide the setting's graph, unless that has been done, and return it."""
    graph = work / setting.preset
    if not graph.exists():
        make(setting.preset, graph, scale=scale)
    parts = work / f"{setting.preset}-{setting.method}-{setting.servers}"
    if not parts.exists():
        partition_graph(GraphDirectory.open(graph), parts, setting.servers, setting.method)
    return parts


def values_of(setting: Setting, parts: Path, epochs: int) -> dict[str, Any]:
    """Return the values of the configuration, without engine and folder."""
    model = {"name": setting.model, "layers": len(setting.fanouts), "hidden": setting.hidden}
    return {
        "data": {"partitioned": str(parts.absolute())},
        "model": model,
        "sampler": {"fanouts": list(setting.fanouts)},
        "train": {
            "batch_size": setting.batch_size,
            "epochs": epochs,
            "iterations_per_epoch": ITERATIONS,
            "evaluate_every": 0,
            "threads": 1,
        },
        "hop": {"merge": "off"},
        "cluster": {"ranks_per_server": setting.ranks_per_server},
    }


def plan(
    setting: Setting, values: dict[str, Any], cores: float, engines: Sequence[str]
) -> dict[str, Estimate]:
    """Rehearse a setting. Return the estimates by engine."""
    config = on_cluster(make_config(values), setting.ranks_per_server)
    rate = parse_rate(setting.link_rate)
    cluster = AskedCluster(setting.servers, setting.ranks_per_server, rate, LATENCY, cores)
    plan = plan_cluster(Request(config, open_graph(config)), cluster, engines)
    return {estimate.engine: estimate for estimate in plan.estimates}


def measure(
    cluster: EmulatedCluster, values: dict[str, Any], engine: str, folder: Path
) -> dict[str, Any]:
    """Train on the hosts. Return the seconds and bytes of a measured epoch."""
    config, run_dir = folder / f"{engine}.json", folder / engine
    config.write_text(json.dumps(values))
    summary = train_on_hosts(
        cluster, engine, config, run_dir, ["--train.engine", engine], LIMIT_SECONDS
    )
    epochs = measured_epochs(summary)
    return {
        "epoch_seconds": median(epoch["seconds"] for epoch in epochs),
        "bytes": {c: round(median(epoch["bytes"][c] for epoch in epochs)) for c in CAUSES},
        "stage_seconds": epochs[0]["stage_seconds"],
        "processor_seconds": median(fmean(epoch["cpu_seconds"]) for epoch in epochs),
        "peak_rss_mib": max(summary["peak_rss_mib"]),
    }


def compare(setting: Setting, options: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    """Yield a cell for each engine of a setting."""
    parts = divide(setting, options.scale, work)
    values = values_of(setting, parts, options.epochs)
    cores = len(os.sched_getaffinity(0)) / setting.servers
    planned = plan(setting, values, cores, options.engines)
    request = make_request(setting.servers, setting.link_rate, cores)
    with tempfile.TemporaryDirectory(dir=work) as folder, emulate_hosts(request) as cluster:
        if not cluster.effective:
            raise SystemExit(f"no emulated hosts: {cluster.why_not}")
        for engine, estimate in planned.items():
            if estimate.refused:
                continue
            measurement = measure(cluster, values, engine, Path(folder))
            nbytes = sum(measurement["bytes"].values())
            yield {
                "setting": setting.name,
                "engine": engine,
                "planned": {
                    "epoch_seconds": estimate.epoch_seconds,
                    "bytes": estimate.bytes,
                    "stage_seconds": estimate.stage_seconds,
                    "processor_seconds": estimate.processor_seconds,
                    "memory_mib": 0 if estimate.memory is None else estimate.memory.total / 2**20,
                },
                "measured": measurement,
                "seconds_error": estimate.epoch_seconds / measurement["epoch_seconds"] - 1,
                "bytes_error": estimate.total_bytes / nbytes - 1 if nbytes else 0.0,
            }


def page(result: dict[str, Any]) -> str:
    """Write a page of the result, in Markdown."""
    cells = result["cells"]
    close_seconds = sum(abs(cell["seconds_error"]) <= SECONDS_GOAL for cell in cells)
    close_bytes = sum(abs(cell["bytes_error"]) <= BYTES_GOAL for cell in cells)
    lines = [
        "# Planned and measured epochs",
        "",
        "`python benchmarks/plan_accuracy.py --out DIR`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}",
        f"- presets at {result['scale']:g} of their size; emulated hosts that share this machine's "
        f"cores; {result['epochs']} epochs of {ITERATIONS} iterations, first and last left out",
        f"- seconds within {SECONDS_GOAL:.0%}: {close_seconds} of {len(cells)}; median distance "
        f"{median(abs(cell['seconds_error']) for cell in cells):.1%}",
        f"- bytes within {BYTES_GOAL:.0%}: {close_bytes} of {len(cells)}; largest distance "
        f"{max(abs(cell['bytes_error']) for cell in cells):.1%}",
        "- processor seconds: of a rank in an epoch; planned ones have both ends of every message, "
        "measured ones not what feature servers take",
        "- measured memory: the most that was resident, pages of mapped files among it",
        "",
        "![Planned and measured](picture.webp)",
        "",
        "| setting | engine | planned, s | measured, s | off | planned, MB | measured, MB | off | "
        "processor, s, planned | measured | MiB a rank, planned | measured |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for cell in cells:
        planned, measured = cell["planned"], cell["measured"]
        megabytes = [sum(side["bytes"].values()) / 1e6 for side in (planned, measured)]
        lines.append(
            f"| {cell['setting']} | `{cell['engine']}` | {planned['epoch_seconds']:.3f} | "
            f"{measured['epoch_seconds']:.3f} | {cell['seconds_error']:+.0%} | "
            f"{megabytes[0]:.2f} | {megabytes[1]:.2f} | {cell['bytes_error']:+.1%} | "
            f"{planned['processor_seconds']:.3f} | "
            f"{measured['processor_seconds']:.3f} | {planned['memory_mib']:,.0f} | "
            f"{measured['peak_rss_mib']:,.0f} |"
        )
    return "\n".join([*lines, ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw a point for each cell: measured to the right, planned upwards."""
    figure = Figure((10, 4.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    ways = (
        ("s an epoch", SECONDS_GOAL, lambda side: side["epoch_seconds"]),
        ("MB an epoch", BYTES_GOAL, lambda side: sum(side["bytes"].values()) / 1e6),
    )
    for axes, (label, goal, value) in zip(figure.subplots(1, 2), ways, strict=True):
        values = [value(cell[side]) for cell in result["cells"] for side in ("planned", "measured")]
        ends = (0.8 * min(values), 1.25 * max(values))
        axes.fill_between(
            ends, [e * (1 - goal) for e in ends], [e * (1 + goal) for e in ends], alpha=0.2
        )
        for engine in dict.fromkeys(cell["engine"] for cell in result["cells"]):
            cells = [cell for cell in result["cells"] if cell["engine"] == engine]
            places = ([value(cell[side]) for cell in cells] for side in ("measured", "planned"))
            axes.scatter(*places, s=18, label=engine)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        axes.set_xlabel(f"measured, {label}")
        axes.set_ylabel(f"planned; within {goal:.0%} shaded")
        axes.legend(fontsize="small")
    figure.savefig(file)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(";"), help="settings, by name; by ;")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=list(ENGINES))
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(argv)
    make_deterministic()
    console, cells = Console(), list[dict[str, Any]]()
    settings = [
        setting for setting in SETTINGS if options.only is None or setting.name in options.only
    ]
    head = {
        **benchmark_header("plan_accuracy"),
        "scale": options.scale,
        "epochs": options.epochs,
        "settings": [asdict(setting) for setting in settings],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="plan-accuracy-") as work, end_on_signals():
        for setting in settings:
            for cell in compare(setting, options, Path(work)):
                cells.append(cell)
                console.print(
                    f"{setting.name}: {cell['engine']}: seconds {cell['seconds_error']:+.1%}, "
                    f"bytes {cell['bytes_error']:+.2%}",
                    highlight=False,
                )
            # Results so far stay if time runs out.
            result = head | {"cells": cells}
            write_text(options.out / "result.json", format_result(result))
            write_text(options.out / "README.md", page(result))
            draw(result, options.out / "picture.webp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
