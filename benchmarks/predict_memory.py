"""Predictions of a graph whose rows are larger than the memory of the host.

usage: python -m benchmarks.predict_memory --out DIR [--nodes 1200000] [--memory 1G] [--rounds 5]

A graph of one node type with communities is made and divided, GraphSAGE of three layers is trained
on it for an epoch, and `hopper predict` then runs in a cgroup that holds all of its processes and
their page cache to ``--memory``; embeddings of all nodes have to be larger. Sides: ``embeddings``;
``resumed``, embeddings again after a kill -9 half way, whose files have to be the same; and
``labels`` of the test nodes, whose accuracy has to be the run's own test score. Needs root. Lines
have seconds, the most MiB of all processes at once, and those that are not of files.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.processes import HOPPER, bounded_group, run_measured
from benchmarks.rounds import Results, make_parser, positive, take_turns
from hopper.config.bounds import parse_size
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.partition import partition_graph
from hopper.predict.parts import Predictions

DEGREE, FEATURES, HIDDEN, CLASSES = 6, 32, 256, 8
NEAR = 500
"""how far most neighbours are, in the order of nodes"""
LOCAL = 0.95
"""the share of such neighbours"""
EMBEDDINGS = ("--what=embeddings", "--format=npy", "--memory=64M")
LABELS = ("--nodes=test", "--format=npy", "--memory=64M")


def make_graph(work: Path, nodes: int) -> Path:
    """Make a graph of communities and divide it. A node's class is that of most nodes around it."""
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
    partition_graph(GraphDirectory.open(work / "graph"), work / "parts", 1, "random")
    return work / "parts"


def train(work: Path, parts: Path) -> float:
    """Train one epoch. Return the run's test score."""
    run = work / "run"
    words = ["--data.partitioned", str(parts), "--train.run_dir", str(run)]
    words += ["--model.name", "sage", "--model.layers", "3", "--model.hidden", str(HIDDEN)]
    words += ["--sampler.fanouts", "[10, 10, 10]", "--train.batch_size", "1024"]
    words += ["--train.engine", "zero_hop", "--train.epochs", "1"]
    (work / "empty.toml").touch()
    subprocess.run([*HOPPER, "train", str(work / "empty.toml"), *words], check=True)
    summary = json.loads((run / "summary.json").read_text())
    return float(summary["scores"]["test"]["accuracy"])


class Prediction:
    """Predicts in a cgroup, and checks what was written.

    Parameters
    ----------
    score: accuracy that labels have to reach.
    """

    def __init__(self, work: Path, group: Path, score: float) -> None:
        self._work, self._group, self._score = work, group, score
        self._labels = GraphDirectory.open(work / "graph").labels("node")

    def embeddings(self, _: int) -> dict[str, float]:
        """Predict undisturbed."""
        shutil.rmtree(self._work / "whole", ignore_errors=True)
        return self._predict("whole", EMBEDDINGS)

    def resumed(self, _: int) -> dict[str, float]:
        """Go on after a kill half way of :meth:`embeddings`."""
        half = self.embeddings(0)["seconds"] / 2
        self._predict("killed", EMBEDDINGS, half)
        measured = self._predict("killed", EMBEDDINGS)
        whole, killed = (
            {file.name: file.read_bytes() for file in (self._work / name).glob("*.npy")}
            for name in ("whole", "killed")
        )
        if whole != killed:
            raise SystemExit("a resumed prediction wrote other files")
        shutil.rmtree(self._work / "killed")
        return measured

    def labels(self, _: int) -> dict[str, float]:
        """Predict labels of the test nodes."""
        measured = self._predict("labels", LABELS)
        predictions = Predictions.open(self._work / "labels")
        accuracy = float((predictions.values == self._labels[predictions.ids]).mean())
        if abs(accuracy - self._score) > 1e-4:
            raise SystemExit(f"labels have an accuracy of {accuracy}, the run of {self._score}")
        shutil.rmtree(self._work / "labels")
        return measured

    def _predict(
        self, name: str, words: Sequence[str], kill_after: float = float("inf")
    ) -> dict[str, float]:
        command = [*HOPPER, "predict", str(self._work / "run"), "--out", str(self._work / name)]
        log = self._work / f"{name}.log"
        return run_measured([*command, *words], log, group=self._group, kill_after=kill_after)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=positive, default=1_200_000)
    parser.add_argument("--memory", default="1G", help="of all processes and their page cache")
    options = parser.parse_args(arguments)
    memory, rows = parse_size(options.memory, "--memory"), options.nodes * HIDDEN * 4
    if rows <= memory:
        parser.error(f"--nodes: embeddings of {rows} bytes are not larger than --memory")
    results = Results("predict-memory", options.out)
    with tempfile.TemporaryDirectory(dir=options.out) as name, bounded_group(memory) as group:
        work = Path(name)
        prediction = Prediction(work, group, train(work, make_graph(work, options.nodes)))
        sides = {side: getattr(prediction, side) for side in ("embeddings", "resumed", "labels")}
        measured = take_turns(sides, options.rounds, warm_up=0)
    results.add(f"{options.nodes} nodes in {options.memory}", measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
