"""Accuracy by epoch under different ways of drawing batches (DistDGLv2, Figure 9)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np
from matplotlib.ticker import MaxNLocator

from benchmarks.paper.accuracy import accuracy_values, train_once
from benchmarks.paper.cells import Cell
from benchmarks.paper.charts import canvas, colour_of, finish, legend_above, save
from benchmarks.paper.experiment import Result, Side, Table
from benchmarks.paper.grid import RUNS_FOLDER, Job
from benchmarks.paper.materials import SEED
from benchmarks.paper.measured import graph_size
from benchmarks.paper.tables import NONE, number
from hopper.config import make_config
from hopper.partition import PartitionedGraph
from hopper.partition.assign import assign
from hopper.partition.phases import Phases

_PLUG_IN: Final = "benchmarks.cluster_gcn"
CLUSTER_GCN: Final = Side("ClusterGCN", f"{_PLUG_IN}:ClusterBatches")
CLUSTERS_FOLDER: Final = "clusters"
_NODES_A_CLUSTER: Final = 128
"""about as many as ClusterGCN's own divisions of Amazon2M have"""
_NEAR: Final = 0.99
"""of the best score of the first side: what the epochs to it are counted to"""


def measure_curves(job: Job, cell: Cell) -> dict[str, Any]:
    """Train every side with every seed, on loopback, scored after each epoch.

    Returns
    -------
    ``clusters``: how many the graph is divided into, and how many of them make a rank's batch.
    ``runs``: by seed and side, the validation score of every epoch, the test score of the best one,
    and iterations of an epoch.
    """
    graph = job.materials.parts(cell)
    folder = job.options.work / RUNS_FOLDER / job.experiment.name / cell.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    clusters, per_batch = count_clusters(graph, cell.batch_size)
    path = _divide(job, cell, clusters)
    config = make_config(accuracy_values(cell, str(graph.path), job.epochs), job.options.words)
    runs = []
    for seed in range(job.options.seeds):
        by_side = {}
        for side in job.experiment.sides:
            words = [*side.contender().words, f"--train.seed={seed}"]
            if side == CLUSTER_GCN:
                words += _cluster_words(path, per_batch, cell.layers)
            with _importable():
                summary = train_once(f"{cell.name}: {side.role}, {seed}", config, folder, words)
            by_side[side.role] = _read_curve(summary)
        runs.append({"seed": seed, "sides": by_side})
        told = ", ".join(f"{role} {max(own['val']):.4f}" for role, own in by_side.items())
        job.progress.say(f"{cell.name}, seed {seed}: {told}")
    shutil.rmtree(folder)
    return {
        **graph_size(graph),
        "clusters": {"count": clusters, "per_batch": per_batch},
        "runs": runs,
    }


def count_clusters(graph: PartitionedGraph, batch_size: int) -> tuple[int, int]:
    """How many clusters a graph is divided into, and how many of them make a rank's batch, so that
    it has about ``batch_size`` training nodes."""
    training = graph.split("train").size
    nodes = graph.schema.node_types[graph.schema.target_type()].count
    clusters = max(2, nodes // _NODES_A_CLUSTER, training // batch_size)
    return clusters, max(1, round(batch_size * clusters / training))


def _divide(job: Job, cell: Cell, clusters: int) -> Path:
    """Divide a cell's graph into clusters by METIS, which balances their nodes and edges but no
    training nodes; returns the file of every node's cluster."""
    graph = job.materials.graph(cell)
    folder = (job.options.work / CLUSTERS_FOLDER).absolute()
    path = folder / f"{graph.path.name}-{clusters}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        job.progress.say(f"dividing {graph.path.name} into {clusters} clusters")
        no_roots = np.empty(0, np.int64)
        found = assign(graph, clusters, "metis", SEED, no_roots, Phases(), folder)
        homes = found.homes[graph.schema.target_type()]
        np.save(path, homes.astype(np.int64), allow_pickle=False)
    return path


def _cluster_words(path: Path, per_batch: int, layers: int) -> list[str]:
    """What ClusterGCN's side sets besides the engine: all edges within a batch are read."""
    quoted = json.dumps(str(path), ensure_ascii=False)
    return [
        f"--sampler.kind={_PLUG_IN}:ClusterSampler",
        f"--sampler.kind_options={{clusters = {quoted}, per_batch = {per_batch}}}",
        f"--sampler.fanouts={[-1] * layers}",
    ]


@contextmanager
def _importable() -> Iterator[None]:
    """Let ranks that are started meanwhile import this checkout's ``benchmarks``."""
    before = os.environ.get("PYTHONPATH")
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = root if before is None else os.pathsep.join((root, before))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _read_curve(summary: Mapping[str, Any]) -> dict[str, Any]:
    epochs = summary["epochs"]
    return {
        "val": [epoch["val"] for epoch in epochs],
        "iterations": epochs[0]["iterations"],
        "test": summary["accuracy"]["test"],
    }


def accuracies_table(result: Result) -> Table:
    """Test accuracy of every side, and the epochs that it takes to come near the first one's."""
    rows = []
    for cell in result["cells"]:
        roles = list(cell["runs"][0]["sides"])
        goal = _NEAR * max(_mean_curve(cell, roles[0]))
        for role in roles:
            own = [run["sides"][role] for run in cell["runs"]]
            tests = [each["test"] for each in own]
            spread = f" ± {100 * stdev(tests):.2f}" if len(tests) > 1 else ""
            curve = _mean_curve(cell, role)
            near = next((epoch for epoch, val in enumerate(curve, 1) if val >= goal), None)
            rows.append(
                [
                    *(cell["name"], role, f"{100 * fmean(tests):.2f}{spread}"),
                    *(f"{100 * max(curve):.2f}", NONE if near is None else str(near)),
                    number(own[0]["iterations"]),
                ]
            )
    headings = (
        *("cell", "side", "test accuracy, %", "best validation accuracy, %"),
        *(f"epochs to {_NEAR:.0%} of the first side's best", "iterations an epoch"),
    )
    divided = "; ".join(
        f"{cell['name']}: {cell['clusters']['count']} clusters, {cell['clusters']['per_batch']} of "
        "them a rank's batch"
        for cell in result["cells"]
    )
    note = (
        f"Means of {len(result['cells'][0]['runs'])} seeds ± standard deviation, the test accuracy "
        "that of the epoch with the best validation score. Validation: the best epoch of the mean "
        f"over seeds. ClusterGCN: {divided}."
    )
    return Table("Accuracy", headings, rows, note)


def curves_table(result: Result) -> Table:
    """Mean validation accuracy of some epochs, per cent."""
    last = len(_mean_curve(result["cells"][0], next(iter(result["cells"][0]["runs"][0]["sides"]))))
    shown = sorted({1, 2, 3, 5, 10, last} & set(range(1, last + 1)))
    rows = []
    for cell in result["cells"]:
        for role in cell["runs"][0]["sides"]:
            curve = _mean_curve(cell, role)
            rows.append([cell["name"], role, *(f"{100 * curve[e - 1]:.2f}" for e in shown)])
    headings = ("cell", "side", *(f"epoch {epoch}" for epoch in shown))
    return Table("Validation accuracy by epoch, %", headings, rows)


def draw_curves(result: Result, path: Path) -> None:
    """Validation accuracy against epochs: the mean of the seeds, and between which they lie."""
    cells = result["cells"]
    figure, axes = canvas(len(cells), 5.2 * len(cells) + 1, 4.2)
    for place, cell in zip(axes, cells, strict=True):
        sides = {"sides": cell["runs"][0]["sides"]}
        for role in sides["sides"]:
            curves = np.array(_curves(cell, role))
            epochs, colour = range(1, curves.shape[1] + 1), colour_of(role, sides)
            place.plot(epochs, 100 * curves.mean(0), marker="o", markersize=3, color=colour,
                       label=role)  # fmt: skip
            place.fill_between(epochs, 100 * curves.min(0), 100 * curves.max(0), color=colour,
                               alpha=0.2, linewidth=0)  # fmt: skip
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
        finish(place, cell["name"], "both", x_label="epoch")
    axes[0].set_ylabel("validation accuracy, per cent", fontsize=9)
    legend_above(figure, axes[:1])
    save(figure, result, path)


def _curves(cell: Mapping[str, Any], role: str) -> list[Sequence[float]]:
    """[seeds, epochs]: validation scores of a side."""
    return [run["sides"][role]["val"] for run in cell["runs"]]


def _mean_curve(cell: Mapping[str, Any], role: str) -> list[float]:
    return [fmean(scores) for scores in zip(*_curves(cell, role), strict=True)]
