"""Predictions of a graph whose rows are larger than the memory of the host.

usage: python benchmarks/predict_memory.py --out DIR [--work DIR] [--nodes 1200000] [--memory 1G]

A graph of one node type with communities is made and divided, GraphSAGE of three layers is trained
on it for an epoch, and `hopper predict --what embeddings` then runs in a cgroup that holds all of
its processes and their page cache to ``--memory``. It is run three times: undisturbed; ended by
kill -9 half way and begun again; and of the test nodes' labels, whose accuracy is compared with the
run's own test score. Embeddings of all nodes have to be larger than the bound.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from hopper.bench.emulate.limits import bound_hosts, ran_out_of_memory, remove_limits
from hopper.bench.machine import benchmark_header, tell_machine
from hopper.bench.results import format_result
from hopper.config.bounds import parse_size
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.palette import hex_of
from hopper.partition import partition_graph
from hopper.predict.parts import Predictions
from hopper.whole_files import write_text

DEGREE, FEATURES, HIDDEN, CLASSES = 6, 32, 256, 8
NEAR = 500
"""how far most neighbours are, in the order of nodes"""
LOCAL = 0.95
"""the share of such neighbours"""
HOPPER = [sys.executable, "-m", "hopper.cli"]


def make_graph(work: Path, nodes: int) -> Path:
    """Make a graph of communities. A node's class is that of most nodes around it."""
    parts = work / "parts"
    if parts.exists():
        return parts
    generator = np.random.default_rng(0)
    dst = np.repeat(np.arange(nodes), DEGREE)
    src = dst + generator.integers(-NEAR, NEAR + 1, dst.size)
    far = generator.random(dst.size) > LOCAL
    src[far] = generator.integers(0, nodes, int(far.sum()))
    labels = (np.arange(nodes) // (4 * NEAR)) % CLASSES
    features = generator.normal(size=(nodes, FEATURES)).astype(np.float32)
    features[np.arange(nodes), labels] += 1.0
    GraphDirectory.from_arrays(
        work / "graph",
        np.stack([src.clip(0, nodes - 1), dst]),
        features=features,
        labels=labels,
        options=ImportOptions(split=RandomSplit(0.05, 0.01)),
    )
    partition_graph(GraphDirectory.open(work / "graph"), parts, 1, "random")
    return parts


def train(work: Path, parts: Path) -> dict[str, Any]:
    """Train one epoch. Return the run's summary and what the epoch took."""
    run = work / "run"
    if not (run / "summary.json").exists():
        words = ["--data.partitioned", str(parts), "--train.run_dir", str(run)]
        words += ["--model.name", "sage", "--model.layers", "3", "--model.hidden", str(HIDDEN)]
        words += ["--sampler.fanouts", "[10, 10, 10]", "--train.batch_size", "1024"]
        words += ["--train.engine", "zero_hop", "--train.epochs", "1"]
        write_text(work / "empty.toml", "")
        subprocess.run([*HOPPER, "train", str(work / "empty.toml"), *words], check=True)
    summary = json.loads((run / "summary.json").read_text())
    epoch = json.loads((run / "epochs.jsonl").read_text().splitlines()[0])
    return {"test": summary["scores"]["test"]["accuracy"], "epoch_seconds": epoch["seconds"]}


class Bound:
    """A cgroup that commands run in."""

    def __init__(self, memory: int) -> None:
        ((self.group,),) = bound_hosts(1, None, memory)

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Return a command whose processes are in the group from the first moment on."""
        enter = f'echo $$ > "{self.group}/cgroup.procs" && exec "$@"'
        with log.open("ab") as out:
            return subprocess.Popen(
                ["sh", "-c", enter, "sh", *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def peak(self) -> int:
        """Return the most bytes that the group has held, page cache included."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if (self.group / name).exists():
                return int((self.group / name).read_text())
        raise FileNotFoundError(f"{self.group}: tells no peak")

    def own_bytes(self) -> int:
        """Return the bytes that the group's processes hold themselves now."""
        lines = (self.group / "memory.stat").read_text().splitlines()
        values = dict(line.split() for line in lines)
        return int(values.get("total_rss", values.get("anon", 0)))


def predict(
    bound: Bound, work: Path, name: str, words: Sequence[str], kill_after: float | None = None
) -> dict[str, float]:
    """Predict in the bound. Return the seconds that it takes, and the most memory its processes
    hold themselves.

    Parameters
    ----------
    kill_after: seconds after which all of its processes are killed.
    """
    command = [*HOPPER, "predict", str(work / "run"), "--out", str(work / name), *words]
    begun, peak = time.monotonic(), 0
    process = bound.start(command, work / f"{name}.log")
    while process.poll() is None:
        peak = max(peak, bound.own_bytes())
        if kill_after is not None and time.monotonic() - begun > kill_after:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _end_all(bound)
            return {"seconds": time.monotonic() - begun, "own_bytes": peak}
        time.sleep(0.2)
    if process.returncode or ran_out_of_memory([bound.group]):
        raise SystemExit(f"{command}: ended with {process.returncode}; see {work / name}.log")
    return {"seconds": time.monotonic() - begun, "own_bytes": peak}


def _end_all(bound: Bound) -> None:
    """Kill what is left in the group. Ranks are in sessions of their own."""
    while pids := (bound.group / "cgroup.procs").read_text().split():
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def digests(folder: Path) -> dict[str, str]:
    """Return the checksum of every part by name."""
    result = {}
    for file in sorted(folder.glob("*.npy")):
        with file.open("rb") as stream:
            result[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return result


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train, and predict under the bound."""
    work, memory = options.work, parse_size(options.memory, "--memory")
    embeddings = options.nodes * HIDDEN * 4
    if embeddings <= memory:
        raise SystemExit(f"--nodes: embeddings of {embeddings} bytes are not larger than --memory")
    work.mkdir(parents=True, exist_ok=True)
    parts = make_graph(work, options.nodes)
    trained = train(work, parts)
    bound = Bound(memory)
    words = ("--what=embeddings", "--format=npy", "--memory=64M")
    try:
        whole = predict(bound, work, "whole", words)
        killed = predict(bound, work, "killed", words, kill_after=whole["seconds"] / 2)
        resumed = predict(bound, work, "killed", words)
        labels = predict(bound, work, "labels", ("--nodes=test", "--format=npy", "--memory=64M"))
        peak = bound.peak()
    finally:
        remove_limits()
    predictions, graph = Predictions.open(work / "labels"), GraphDirectory.open(work / "graph")
    accuracy = float((predictions.values == graph.labels("node")[predictions.ids]).mean())
    return {
        **benchmark_header("predict_memory"),
        "nodes": options.nodes,
        "edges": options.nodes * DEGREE,
        "hidden": HIDDEN,
        "bound_bytes": memory,
        "embeddings_bytes": embeddings,
        "peak_bytes": peak,
        "epoch": trained["epoch_seconds"],
        "roots_of_an_epoch": int(graph.schema.splits["train"]),
        "whole": whole,
        "killed": killed,
        "resumed": resumed,
        "labels": labels,
        "same_files": digests(work / "whole") == digests(work / "killed"),
        "accuracy": accuracy,
        "accuracy_of_the_run": trained["test"],
    }


def page(result: dict[str, Any]) -> str:
    """Write a page of the result, in Markdown."""
    mib = {
        name: f"{result[name] / 2**20:,.0f}"
        for name in ("bound_bytes", "embeddings_bytes", "peak_bytes")
    }
    largest = max(result[name]["own_bytes"] for name in ("whole", "killed", "resumed", "labels"))
    same_text = "the same, bit for bit" if result["same_files"] else "NOT THE SAME"
    lines = [
        "# Predictions larger than memory",
        "",
        "`python benchmarks/predict_memory.py --out DIR`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}",
        f"- {result['nodes']:,} nodes, {result['edges']:,} edges, one server; GraphSAGE of 3 "
        f"layers, hidden {result['hidden']}",
        f"- all processes and their page cache in {mib['bound_bytes']} MiB",
        "",
        "![Memory](picture.webp)",
        "",
        "| what | |",
        "|---|---:|",
        f"| embeddings of all nodes, MiB | {mib['embeddings_bytes']} |",
        f"| most that all processes held at once, page cache included, MiB | {mib['peak_bytes']} |",
        f"| of which their own, MiB | {largest / 2**20:,.0f} |",
        f"| embeddings of all nodes, s | {result['whole']['seconds']:.1f} |",
        f"| killed after, s | {result['killed']['seconds']:.1f} |",
        f"| gone on, s | {result['resumed']['seconds']:.1f} |",
        f"| files after that | {same_text} |",
        f"| labels of the test nodes, s | {result['labels']['seconds']:.1f} |",
        f"| an epoch of {result['roots_of_an_epoch']:,} roots, without a bound, s | "
        f"{result['epoch']:.1f} |",
        f"| accuracy of these labels, % | {100 * result['accuracy']:.4f} |",
        f"| the run's own test score, % | {100 * result['accuracy_of_the_run']:.4f} |",
    ]
    return "\n".join([*lines, ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw how much memory there is, and what held it."""
    largest = max(result[name]["own_bytes"] for name in ("whole", "killed", "resumed", "labels"))
    bars = {
        "embeddings": result["embeddings_bytes"],
        "held, page cache included": result["peak_bytes"],
        "held by processes": largest,
    }
    figure = Figure((7, 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(bars)[::-1]
    axes.barh(names, [bars[name] / 2**20 for name in names], color=hex_of("blue"))
    axes.axvline(result["bound_bytes"] / 2**20, color=hex_of("red"), label="bound")
    axes.set_xlabel("MiB")
    axes.legend(loc="lower right")
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("predict-memory-work"))
    parser.add_argument("--nodes", type=int, default=1_200_000)
    parser.add_argument("--memory", default="1G", help="of all processes and their page cache")
    options = parser.parse_args(argv)
    result = measure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "result.json", format_result(result))
    write_text(options.out / "README.md", page(result))
    draw(result, options.out / "picture.webp")
    shutil.rmtree(options.work)
    Console().print(page(result), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
