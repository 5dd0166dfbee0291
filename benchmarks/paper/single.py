"""Measures of a single process or job: "locality" (HopGNN, Table 1) and "job-times" (DistDGLv2,
Table 2)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.paper.cells import Cell
from benchmarks.paper.job import Job, Measured, Value, Values, graph_size
from benchmarks.paper.materials import SEED
from hopper.bench.train_process import train_in_process
from hopper.errors import RequestError
from hopper.files.whole_files import write_text
from hopper.hetero.divide import divide_graph
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.locality import measure_locality
from hopper.micrograph.sample import NeighborSampler
from hopper.partition import PartitionedGraph
from hopper.timing.run_log import OPENED
from hopper.train.results import main_score, spans_file

_PARTITIONER: Final = "assign nodes"
"""how the partitioner's own phase begins; all others load, number, and write"""
_RUN_SECONDS: Final = 3600.0


class Depth(NamedTuple):
    """How deep micrographs are: name in Table 1, fanouts, roots that are measured."""

    name: str
    fanouts: tuple[int, ...]
    roots: int


DEPTHS: Final = (Depth("2L", (10, 10), 2000), Depth("10L", (2,) * 10, 300))
SAMPLINGS: Final = {"node-wise": NeighborSampler, "layer-wise": LayerSampler}


def measure_localities(job: Job, cell: Cell) -> Measured:
    """Measure the locality (R_micro, R_sub) of every sampling and depth; each is a side."""
    graph = job.materials.parts(cell)
    values: Values = {}
    localities = {}
    for name, sampler in SAMPLINGS.items():
        for depth in DEPTHS:
            side = f"{name}, {depth.name}"
            job.begin(f"{cell.name}: {side}")
            sizes = depth.fanouts if name == "node-wise" else layer_sizes(graph, depth)
            locality = measure_locality(graph, sizes, depth.roots, sampler=sampler)
            values[side] = {
                "micrograph locality": locality.micrograph,
                "subgraph locality": locality.subgraph,
            }
            localities[side] = asdict(locality)
    edge_cut = graph.description.get("edge_cut")
    return Measured(values, {**graph_size(graph), "edge_cut": edge_cut, "localities": localities})


def layer_sizes(graph: PartitionedGraph, depth: Depth) -> tuple[int, ...]:
    """Return sizes of layer samples. A node would keep as many in-edges as at the fanout if all
    nodes were equally likely to be in the sample."""
    nodes = graph.schema.node_types[graph.schema.target_type()].count
    edges = sum(kind.count for kind in graph.schema.relations.values())
    return tuple(max(1, min(nodes, round(f * nodes * nodes / edges))) for f in depth.fanouts)


def measure_job_times(job: Job, cell: Cell) -> Measured:
    """Divide a cell's graph anew, then train on it until the validation score has not been better
    for a few epochs; the experiment's only side."""
    ((side, contender),) = job.contenders(cell).items()
    rounds = [_time_job(job, cell, contender.words) for _ in range(job.experiment.rounds)]
    values: dict[str, Value] = {
        name: [float(measured[name]) for measured in rounds]
        for name in rounds[0]
        if name != "phases"
    }
    record = {**graph_size(job.materials.parts(cell)), "phases": [r["phases"] for r in rounds]}
    return Measured({side: values}, record)


def _time_job(job: Job, cell: Cell, words: Sequence[str]) -> dict[str, Any]:
    folder = job.run_folder(cell)
    job.begin(f"{cell.name}: dividing the graph")
    graph = job.materials.graph(cell)
    divided = divide_graph(graph, folder / "parts", cell.servers, cell.method, seed=SEED)
    phases: dict[str, float] = divided.description["seconds"]
    partitioner = sum(s for name, s in phases.items() if name.startswith(_PARTITIONER))
    file = folder / "config.json"
    config = job.config(cell, divided.path)
    write_text(file, config.model_dump_json(indent=1) + "\n")
    job.begin(f"{cell.name}: training")
    began = time.time()
    summary = train_in_process(cell.name, file, folder / "run", words, _RUN_SECONDS)
    return {
        "partitioner seconds": partitioner,
        "loading and saving seconds": sum(phases.values()) - partitioner,
        "loading for training seconds": first_iteration(folder / "run", cell.servers) - began,
        "training seconds to the best score": seconds_to_best(
            summary["epochs"], summary["best_epoch"]
        ),
        "epochs to the best score": summary["best_epoch"] + 1,
        "best validation accuracy": main_score(summary, "val") or 0.0,
        "phases": phases,
    }


def first_iteration(run_dir: Path, ranks: int) -> float:
    """Return when the last of the ranks began its first iteration, in seconds since 1970.

    Raises
    ------
    RequestError: a rank's spans hold no iteration.
    """
    moments = []
    for rank in range(ranks):
        opened = first = None
        for line in spans_file(run_dir, rank).read_text().splitlines():
            span = json.loads(line)
            if span.get("event") == OPENED:
                opened = span["unix"]
            elif "iteration" in span and (first is None or span["start"] < first):
                first = span["start"]
        if opened is None or first is None:
            raise RequestError(f"{spans_file(run_dir, rank)}: no iteration in it")
        moments.append(opened + first)
    return float(max(moments))


def seconds_to_best(epochs: Sequence[dict[str, Any]], best: int) -> float:
    """Return the seconds of training and of scoring, up to the end of an epoch."""
    return sum(e["seconds"] + e["evaluation_seconds"] for e in epochs if e["epoch"] <= best)
