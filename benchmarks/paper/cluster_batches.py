"""ClusterGCN's batches as one side of an experiment (DistDGLv2, Figure 9)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.paper.cells import Cell
from benchmarks.paper.convergence import run_curves
from benchmarks.paper.experiment import Result, Side, Table
from benchmarks.paper.grid import Job
from benchmarks.paper.materials import SEED
from hopper.partition import PartitionedGraph
from hopper.partition.assign import assign
from hopper.partition.balance import Balance
from hopper.phases import Phases
from hopper.train.rank_processes import set_environment

_PLUG_IN: Final = "benchmarks.cluster_gcn"
CLUSTER_GCN: Final = Side("ClusterGCN", f"{_PLUG_IN}:ClusterBatches")
CLUSTERS_FOLDER: Final = "clusters"
_NODES_A_CLUSTER: Final = 128
"""about as many as ClusterGCN's own divisions of Amazon2M have"""


def run_cluster_curves(job: Job) -> Iterator[dict[str, Any]]:
    """Do what :func:`run_curves` does, with :data:`CLUSTER_GCN` as one of the sides.

    Yields
    ------
    Cells of result.json, with ``clusters``: how many the graph is divided into, and how many of
    them make a rank's batch.
    """
    cells = {cell.name: cell for cell in job.cells}
    with set_environment(_importable()):
        for entry in run_curves(job, _words):
            cell = cells[entry["name"]]
            count, per_batch = count_clusters(job.materials.parts(cell), cell.batch_size)
            yield entry | {"clusters": {"count": count, "per_batch": per_batch}}


def count_clusters(graph: PartitionedGraph, batch_size: int) -> tuple[int, int]:
    """Return how many clusters a graph is divided into, and how many of them make a rank's batch,
    so that it has about ``batch_size`` training nodes."""
    training = graph.split("train").size
    nodes = graph.schema.node_types[graph.schema.target_type()].count
    clusters = max(2, nodes // _NODES_A_CLUSTER, training // batch_size)
    return clusters, max(1, round(batch_size * clusters / training))


def clusters_table(result: Result) -> Table:
    """Make a table of the clusters of every cell."""
    rows = [
        [cell["name"], f"{cell['clusters']['count']:,}", str(cell["clusters"]["per_batch"])]
        for cell in result["cells"]
    ]
    return Table("ClusterGCN's clusters", ("cell", "clusters", "of a rank's batch"), rows)


def _words(job: Job, cell: Cell, role: str) -> tuple[str, ...]:
    """Return what ClusterGCN's side sets besides the engine: all edges within a batch are read."""
    if role != CLUSTER_GCN.role:
        return ()
    clusters, per_batch = count_clusters(job.materials.parts(cell), cell.batch_size)
    quoted = json.dumps(str(_divide(job, cell, clusters)), ensure_ascii=False)
    return (
        f"--sampler.kind={_PLUG_IN}:ClusterSampler",
        f"--sampler.kind_options={{clusters = {quoted}, per_batch = {per_batch}}}",
        f"--sampler.fanouts={[-1] * cell.layers}",
    )


def _divide(job: Job, cell: Cell, clusters: int) -> Path:
    """Divide a cell's graph into clusters by METIS, which balances their nodes and edges but no
    training nodes; returns the file of every node's cluster."""
    graph = job.materials.graph(cell)
    folder = (job.options.work / CLUSTERS_FOLDER).absolute()
    path = folder / f"{graph.path.name}-{clusters}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        job.progress.say(f"dividing {graph.path.name} into {clusters} clusters")
        no_roots = Balance({"train": np.empty(0, np.int64)})
        assignment = assign(graph, clusters, "metis", SEED, no_roots, Phases(), folder)
        homes = assignment.homes[graph.schema.target_type()]
        np.save(path, homes.astype(np.int64), allow_pickle=False)
    return path


def _importable() -> dict[str, str]:
    """Return the environment in which ranks can import this checkout's ``benchmarks``."""
    root, python_path = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": root if python_path is None else os.pathsep.join((root, python_path))}
