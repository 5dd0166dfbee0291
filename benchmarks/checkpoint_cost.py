"""What a checkpoint every 50 iterations costs, and what keeping each iteration in memory does.

Both are measured for a model alone, and for a model with learnable rows.

usage: python benchmarks/checkpoint_cost.py --out DIR --features GRAPH --learnable GRAPH
       [--every 50] [--rounds 6] [--hosts 2] [--link-rate 1gbit]

Both graphs are divided over emulated hosts (root is needed) by METIS. ``hopper bench ab`` then
trains each one with and without checkpoints, in turns. Checkpoints are written beside training,
fsynced, and the newest two are kept.

Writes ``DIR/result.json``, ``DIR/README.md`` and ``DIR/picture.webp``; goes on where it was ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

sys.path.append(str(Path(__file__).resolve().parents[1]))

from benchmarks.ab_command import compare_engines
from hopper.bench.machine import benchmark_header, tell_machine
from hopper.bench.results import format_result
from hopper.bench.statistics import measured_epochs
from hopper.graph.directory import GraphDirectory
from hopper.paired_ratio import paired_ratio
from hopper.partition import partition_graph
from hopper.train.loop import KEEPING
from hopper.train.results import EPOCHS_FILE
from hopper.whole_files import write_text

ENGINE = "zero_hop"
CHECKPOINTS_AN_EPOCH = 2
MODELS: dict[str, dict[str, Any]] = {
    "a model": {
        "model": {"name": "sage", "layers": 3, "hidden": 256},
        "sampler": {"fanouts": [10, 10, 5]},
        "train": {"batch_size": 128},
    },
    "a model and learnable rows": {
        "model": {"name": "rgcn", "layers": 2, "hidden": 64},
        "sampler": {"fanouts": [10, 10]},
        "train": {"batch_size": 64},
    },
}
GOALS = {"a model": 0.03, "a model and learnable rows": 0.05}


def compare(options: argparse.Namespace, name: str, graph: GraphDirectory) -> dict[str, Any]:
    """Train with and without checkpoints, and return the results of ``hopper bench ab``.

    Raises
    ------
    CalledProcessError: the comparison failed, or gradients differ.
    """
    folder: Path = options.out / name.replace(" ", "-")
    parts = options.out / f"{folder.name}-parts"
    if not parts.exists():
        partition_graph(graph, parts, options.hosts)
    run = {
        "epochs": 4,
        "iterations_per_epoch": CHECKPOINTS_AN_EPOCH * options.every,
        "evaluate_every": 0,
        "threads": 1,
    }
    values = MODELS[name] | {"data": {"partitioned": str(parts.absolute())}}
    values["train"] = values["train"] | run
    config = options.out / f"{folder.name}.json"
    config.write_text(json.dumps(values))
    return compare_engines(
        config,
        [ENGINE, f"{ENGINE}:train.checkpoint_every={options.every}"],
        folder,
        rounds=options.rounds,
        hosts=options.hosts,
        link_rate=options.link_rate,
    )


def summarise(
    results: dict[str, Any], name: str, graph: GraphDirectory, folder: Path, every: int
) -> dict[str, Any]:
    """Return the seconds of an epoch with and without, their ratio over rounds, and how large one
    is."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for run in sorted(results["runs"], key=lambda run: run["round"]):
        epochs = [epoch["seconds"] for epoch in measured_epochs(run)]
        seconds["checkpoint_every" in run["label"]].append(fmean(epochs))
    ratio = paired_ratio(seconds[True], seconds[False])
    return {
        "what": name,
        "graph": graph.schema.name,
        "seconds_without": [round(value, 4) for value in seconds[False]],
        "seconds_with": [round(value, 4) for value in seconds[True]],
        "cost_of_an_epoch": {key: getattr(ratio, key) - 1 for key in ("mean", "low", "high")},
        "cost_within_runs": cost_within_runs(folder, every),
        "share_of_keeping": share_of_keeping(folder),
        "goal": GOALS[name],
        "checkpoint_bytes": newest_checkpoint(folder),
    }


def cost_within_runs(folder: Path, every: int) -> dict[str, float]:
    """Return how much longer iterations take while a checkpoint is written, as a share of all of
    them.

    Other work on the machine makes whole runs faster or slower, by more than a checkpoint costs.
    So the half of a checkpoint's iterations that follow it are compared with as many around them,
    in each measured epoch, and what that comes to in runs without checkpoints is taken off.

    Parameters
    ----------
    folder: of the comparison's runs.
    every: iterations between checkpoints, half an epoch.

    Returns
    -------
    mean, low and high: with the 95 % interval over epochs (Welch).
    """
    shares: dict[bool, list[float]] = {False: [], True: []}
    for spans in sorted(folder.glob("runs/*/spans/rank-0.jsonl")):
        for seconds in iteration_seconds(spans)[1:-1]:
            half = every // 2
            after = seconds[every : every + half]
            around = [*seconds[every - half : every], *seconds[every + half : every + 2 * half]]
            extra = half * (fmean(after) - fmean(around))
            with_checkpoints = "checkpoint_every" in spans.parts[-3]
            shares[with_checkpoints].append(extra / (every * fmean([*after, *around])))
    test = stats.ttest_ind(shares[True], shares[False], equal_var=False)
    low, high = test.confidence_interval(0.95)
    mean = fmean(shares[True]) - fmean(shares[False])
    return {"mean": mean, "low": float(low), "high": float(high)}


def share_of_keeping(folder: Path) -> dict[str, float]:
    """Return the share of training time in which rank 0 copies its state after every iteration.

    Returns
    -------
    mean, low and high: with the 95 % interval over runs.
    """
    shares = []
    for spans in sorted(folder.glob("runs/*/spans/rank-0.jsonl")):
        keeping_seconds = 0.0
        for line in spans.read_text().splitlines():
            span = json.loads(line)
            if span.get("operation") == KEEPING and span["epoch"] > 0:
                keeping_seconds += span["seconds"]
        epochs = (spans.parents[1] / EPOCHS_FILE).read_text().splitlines()[1:]
        shares.append(keeping_seconds / sum(json.loads(line)["seconds"] for line in epochs))
    half = stats.t.ppf(0.975, len(shares) - 1) * stats.sem(shares)
    mean = fmean(shares)
    return {"mean": mean, "low": float(mean - half), "high": float(mean + half)}


def iteration_seconds(spans: Path) -> list[list[float]]:
    """Return, by epoch and iteration, the seconds since the end of the iteration before; nan for
    the first."""
    ends: dict[tuple[int, int], float] = {}
    for line in spans.read_text().splitlines():
        span = json.loads(line)
        if span.get("span") == "sync":
            key = span["epoch"], span["iteration"]
            ends[key] = max(ends.get(key, 0.0), span["start"] + span["seconds"])
    epochs: list[list[float]] = [[] for _ in range(1 + max(epoch for epoch, _ in ends))]
    last = nan
    for (epoch, _), end in sorted(ends.items()):
        epochs[epoch].append(end - last)
        last = end
    return epochs


def newest_checkpoint(folder: Path) -> int:
    """Return the bytes of all files of the last checkpoint that a run below the folder kept."""
    sizes: dict[str, int] = {}
    for file in folder.rglob("checkpoints/*step-*"):
        if file.is_file():
            step = f"{file.parent.parent}:{file.stem.split('step-')[1].split('.')[0]}"
            sizes[step] = sizes.get(step, 0) + file.stat().st_size
    return max(sizes.values(), default=0)


def page(result: dict[str, Any]) -> str:
    """Write a page of the result, in Markdown."""
    lines = [
        "# What checkpoints cost",
        "",
        "`python benchmarks/checkpoint_cost.py --features GRAPH --learnable GRAPH --out DIR`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}",
        f"- `{ENGINE}` on {result['hosts']} emulated hosts, links of {result['link_rate']}; a "
        f"checkpoint every {result['every']} iterations, two an epoch; "
        f"{result['rounds']} rounds, with and without in turns",
        "- cost of an epoch: how much longer one takes, 95 % interval over rounds; within runs: "
        "how much longer iterations take while a checkpoint is written than those around them, as "
        "a share of all iterations, 95 % interval over epochs",
        "- keeping: share of an epoch in which a rank copies its state in memory after every "
        "iteration (`cluster.reconnects`), 95 % interval over runs",
        "",
        "![Cost by round](picture.webp)",
        "",
        "| what is saved | graph | a checkpoint, MB | s an epoch without | with | cost of an epoch "
        "| within runs | keeping | goal |",
        "|---|---|---:|---:|---:|---|---|---|---:|",
    ]
    for cell in result["cells"]:
        costs = [cell["cost_of_an_epoch"], cell["cost_within_runs"]]
        texts = [f"{c['mean']:+.1%} ({c['low']:+.1%} to {c['high']:+.1%})" for c in costs]
        share = cell["share_of_keeping"]
        texts.append(f"{share['mean']:.2%} ({share['low']:.2%} to {share['high']:.2%})")
        lines.append(
            f"| {cell['what']} | {cell['graph']} | {cell['checkpoint_bytes'] / 1e6:.1f} | "
            f"{fmean(cell['seconds_without']):.3f} | {fmean(cell['seconds_with']):.3f} | "
            f"{' | '.join(texts)} | {cell['goal']:.0%} |"
        )
    return "\n".join([*lines, ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw a point for each round."""
    figure = Figure((7, 3), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, cell in enumerate(result["cells"]):
        pairs = zip(cell["seconds_with"], cell["seconds_without"], strict=True)
        costs = [100 * (with_ / without - 1) for with_, without in pairs]
        axes.plot(costs, [place] * len(costs), "o", color="#0072B2", alpha=0.7)
        axes.plot(100 * cell["goal"], place, "|", color="#D55E00", markersize=24, markeredgewidth=2)
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(result["cells"])), [cell["what"] for cell in result["cells"]])
    axes.set_ylim(-0.6, len(result["cells"]) - 0.4)
    axes.set_xlabel("longer than without, per cent: a point a round; the goal as a bar")
    figure.savefig(file)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--features", type=GraphDirectory.open, required=True)
    parser.add_argument("--learnable", type=GraphDirectory.open, required=True)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--link-rate", default="1gbit")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    graphs = dict(zip(MODELS, (options.features, options.learnable), strict=True))
    cells: list[dict[str, Any]] = []
    for name, graph in graphs.items():
        results = compare(options, name, graph)
        folder = options.out / name.replace(" ", "-")
        cells.append(summarise(results, name, graph, folder, options.every))
        result = {
            **benchmark_header("checkpoint_cost"),
            **{key: results[key] for key in ("commit", "machine", "versions")},
            **{key: getattr(options, key) for key in ("every", "rounds", "hosts", "link_rate")},
            "configs": MODELS,
            "cells": cells,
        }
        write_text(options.out / "result.json", format_result(result))
        write_text(options.out / "README.md", page(result))
        draw(result, options.out / "picture.webp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
