"""The measures of HiFuse's Figures 7, 8, 10 and 11 and of its Table 3, on sampled batches.

Each side computes the same batches: relation by relation and merged in Hopper's own kernels, and
PyTorch Geometric's convolutions where they are installed (``benchmarks/layers``).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any, Final

import torch

from benchmarks.layers.batches import Workload
from benchmarks.layers.operators import count_operators
from benchmarks.layers.pyg import StackedSide, difference, pyg_sides
from benchmarks.layers.rates import (
    Aggregation,
    hopper_aggregation,
    measure_machine,
    pyg_aggregation,
)
from benchmarks.layers.sides import BY_RELATION, MERGED, HopperSide, LayerSide
from benchmarks.paper.cells import Cell
from benchmarks.paper.job import Job, Measured, Values, graph_size
from hopper.config import make_config
from hopper.device.choice import choose_device

PYG: Final = {"rgcn": "RGCNConv", "rgat": "RGATConv"}
"""by model, the convolution of PyG that HiFuse is compared with"""
PYG_ROLE: Final = "PyG"
LIMIT: Final = 1e-4
"""of the difference of logits, over the largest of them"""


def measure_layer_epochs(job: Job, cell: Cell) -> Measured:
    """Time an epoch of every side, round by round: sampling and what else prepares a batch, and
    computing it, one after the other (Figures 7 and 10)."""
    work = _workload(job, cell)
    sides = _sides(work)
    problems = _compare_logits(sides)
    prepares: dict[str, list[float]] = {side: [] for side in sides}
    computes: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(-1, job.experiment.rounds):
        totals = {side: [0.0, 0.0] for side in sides}
        for batch in range(len(work.batches)):
            start = (turn + batch) % len(sides)
            for side in [*list(sides)[start:], *list(sides)[:start]]:
                for stage, seconds in enumerate(_time_batch(work, sides[side], batch)):
                    totals[side][stage] += seconds
        # The first pass only warms up.
        for side, (prepare, compute) in totals.items() if turn >= 0 else ():
            prepares[side].append(prepare)
            computes[side].append(compute)
    values: Values = {}
    for side, prepared in prepares.items():
        pairs = list(zip(prepared, computes[side], strict=True))
        values[side] = {
            "batch seconds": [prepare + compute for prepare, compute in pairs],
            "preparing seconds": prepared,
            "computing seconds": computes[side],
            "preparing over computing": [prepare / compute for prepare, compute in pairs],
        }
    return Measured(values, _describe(work), problems)


def measure_layer_operators(job: Job, cell: Cell) -> Measured:
    """Count the operators of torch of every side, in all and in the forward pass (Figures 8 and
    11)."""
    work = _workload(job, cell)
    sides = _sides(work)
    values: Values = {}
    for side, layers in sides.items():
        count = count_operators(layers)
        values[side] = {"operators of torch": float(count.whole)}
        values[side] |= {f"forward, {kind}": float(n) for kind, n in count.forward.items()}
    return Measured(values, _describe(work), _compare_logits(sides))


def measure_layer_rates(job: Job, cell: Cell) -> Measured:
    """Measure the rates of the sums over edges of every side on the CPU, beside those of the
    processors, measured in the same process (Table 3)."""
    work = _workload(job, cell, torch.device("cpu"))
    attends = cell.model == "rgat"
    sums: dict[str, Aggregation] = {}
    for side, layers in _sides(work).items():
        if isinstance(layers, HopperSide):
            sums[side] = hopper_aggregation(layers, weighted=attends)
        elif isinstance(layers, StackedSide):
            sums[side] = pyg_aggregation(layers, by_relation=not attends)
    seconds: dict[str, list[float]] = {side: [] for side in sums}
    for turn in range(-1, job.experiment.rounds):
        for side, aggregation in sums.items():
            spent = aggregation.seconds()
            if turn >= 0:
                seconds[side].append(spent)
    machine = measure_machine()
    values: Values = {
        "the machine": {"Gflop/s": machine.arithmetic / 1e9, "GB/s": machine.memory / 1e9}
    }
    for side, aggregation in sums.items():
        rates = [aggregation.rates(spent) for spent in seconds[side]]
        values[side] = {
            "calls": float(len(aggregation.calls)),
            "seconds": seconds[side],
            "Gflop/s": [rate.arithmetic / 1e9 for rate in rates],
            "share of the machine's arithmetic": [r.arithmetic / machine.arithmetic for r in rates],
            "GB/s": [rate.memory / 1e9 for rate in rates],
            "share of the machine's memory rate": [r.memory / machine.memory for r in rates],
        }
    return Measured(values, _describe(work))


def _workload(job: Job, cell: Cell, device: torch.device | None = None) -> Workload:
    """Return the batches of a cell, on a device; None = the one that the configuration chooses."""
    graph = job.materials.parts(cell)
    config = job.config(cell, graph.path)
    words = ["--train.engine=model_centric"]
    if config.model.name == "rgcn":
        # PyG's is compared without root weight too.
        words.append("--model.root_weight=false")
    config = make_config(config.given(), words)
    return Workload(graph, config, 0, device or choose_device(config.train.device))


def _sides(work: Workload) -> dict[str, LayerSide]:
    """Make the sides, without PyG's if it is not installed or if they are too large."""
    merged = HopperSide(work, merge=True)
    sides: dict[str, LayerSide] = {BY_RELATION: HopperSide(work, merge=False)}
    name = PYG[work.config.model.name]
    pyg = pyg_sides(work).get(name)
    if isinstance(pyg, StackedSide):
        if name == PYG["rgcn"]:
            pyg.take_weights(merged)
        sides[PYG_ROLE] = pyg
    return sides | {MERGED: merged}


def _compare_logits(sides: Mapping[str, LayerSide]) -> list[str]:
    """Describe the sides that do not compute the same. PyG's R-GAT has other weights and is left
    out."""
    expected = sides[MERGED].step(0)
    problems = []
    for name in (BY_RELATION, PYG_ROLE):
        side = sides.get(name)
        if side is None or (name == PYG_ROLE and side.work.config.model.name == "rgat"):
            continue
        error = difference(side.step(0), expected)
        if error > LIMIT:
            problems.append(f"{name}: logits differ by {error:.1e}")
    return problems


def _time_batch(work: Workload, side: LayerSide, batch: int) -> tuple[float, float]:
    """Return the seconds that prepare a batch, and that compute it."""
    gc.disable()
    began = time.perf_counter()
    prepared = side.prepare(batch, work.sample(batch))
    work.wait_for_device()
    between = time.perf_counter()
    side.compute(batch, prepared)
    work.wait_for_device()
    ended = time.perf_counter()
    gc.enable()
    return between - began, ended - between


def _describe(work: Workload) -> dict[str, Any]:
    """Return the facts about batches that cells of all these experiments hold."""
    facts = work.describe()
    return {
        **graph_size(work.graph),
        "relations": facts["relations"],
        "batches": facts["batches"],
        "roots": sum(facts["roots"]),
        "sampled_edges": sum(facts["edges"]),
        "threads": torch.get_num_threads(),
    }
