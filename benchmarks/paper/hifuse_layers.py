"""The measures of HiFuse's Figures 7, 8, 10 and 11 and of its Table 3, on sampled batches.

Each side computes the same batches: relation by relation and merged in Hopper's own kernels, and
PyTorch Geometric's convolutions where they are installed (``benchmarks/layers``).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
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
from benchmarks.paper.each_cell import graph_size
from benchmarks.paper.grid import Job
from hopper.config import Config, make_config
from hopper.device_choice import choose_device
from hopper.paired_ratio import paired_ratio

PYG: Final = {"rgcn": "RGCNConv", "rgat": "RGATConv"}
"""by model, the convolution of PyG that HiFuse is compared with"""
PYG_ROLE: Final = "PyG"
COMPARISONS: Final = ((MERGED, BY_RELATION), (MERGED, PYG_ROLE))
LIMIT: Final = 1e-4
"""of the difference of logits, over the largest of them"""


def measure_epochs(job: Job, cell: Cell) -> dict[str, Any]:
    """Return the seconds of an epoch of every side, round by round: sampling and what else prepares
    a batch, and computing it, one after the other (Figures 7 and 10)."""
    work = _workload(job, cell)
    sides = _sides(work)
    problems = _compare_logits(sides)
    spent = {role: _Spent() for role in sides}
    for turn in range(-1, job.rounds):
        totals = {role: [0.0, 0.0] for role in sides}
        for batch in range(len(work.batches)):
            start = (turn + batch) % len(sides)
            for role in [*list(sides)[start:], *list(sides)[:start]]:
                for stage, seconds in enumerate(_time_batch(work, sides[role], batch)):
                    totals[role][stage] += seconds
        if turn < 0:
            # The first pass only warms up.
            continue
        for role, (prepare, compute) in totals.items():
            spent[role].prepare.append(prepare)
            spent[role].compute.append(compute)
    whole = {role: costs.whole() for role, costs in spent.items()}
    return {
        **_describe(work),
        "sides": {role: costs.describe() for role, costs in spent.items()},
        "ratios": [_ratio(whole, pair, problems) for pair in COMPARISONS if pair[1] in sides],
        "problems": problems,
    }


@dataclass(frozen=True)
class _Spent:
    """Seconds of a side, a round each."""

    prepare: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)

    def whole(self) -> list[float]:
        """Return the seconds of every round."""
        return [a + b for a, b in zip(self.prepare, self.compute, strict=True)]

    def describe(self) -> dict[str, float]:
        """Return the medians over rounds."""
        return {
            "seconds": median(self.whole()),
            "prepare": median(self.prepare),
            "compute": median(self.compute),
        }


def measure_operators(job: Job, cell: Cell) -> dict[str, Any]:
    """Return the operators of an epoch of every side, in all and in the forward pass (Figures 8 and
    11)."""
    work = _workload(job, cell)
    sides = _sides(work)
    return {
        **_describe(work),
        "operators": {role: count_operators(side)._asdict() for role, side in sides.items()},
        "problems": _compare_logits(sides),
    }


def measure_rates(job: Job, cell: Cell) -> dict[str, Any]:
    """Return the rates of the sums over edges of every side on the CPU, median over rounds, beside
    those of the processors, measured in the same process (Table 3)."""
    work = _workload(job, cell, torch.device("cpu"))
    attends = cell.model == "rgat"
    sums: dict[str, Aggregation] = {}
    for role, side in _sides(work).items():
        if isinstance(side, HopperSide):
            sums[role] = hopper_aggregation(side, weighted=attends)
        elif isinstance(side, StackedSide):
            sums[role] = pyg_aggregation(side, by_relation=not attends)
    seconds: dict[str, list[float]] = {role: [] for role in sums}
    for turn in range(-1, job.rounds):
        for role, role_seconds in sums.items():
            spent = role_seconds.seconds()
            if turn >= 0:
                seconds[role].append(spent)
    return {
        **_describe(work),
        "machine_rates": measure_machine()._asdict(),
        "rates": {
            role: {
                "calls": len(role_seconds.calls),
                "seconds": median(seconds[role]),
                **role_seconds.rates(median(seconds[role]))._asdict(),
            }
            for role, role_seconds in sums.items()
        },
    }


def _workload(job: Job, cell: Cell, device: torch.device | None = None) -> Workload:
    """Return the batches of a cell, on a device; None = the one that the configuration chooses."""
    graph = job.materials.parts(cell)
    config = job.config(cell, graph.path)
    configs = {merge: _configure(config, merge=merge) for merge in (False, True)}
    return Workload(graph, configs, 0, device or choose_device(config.train.device))


def _configure(config: Config, *, merge: bool) -> Config:
    """Return a cell's configuration, R-GCN without root weight, which PyG's is compared without
    too."""
    words = ["--train.engine=model_centric", f"--model.merge={str(merge).lower()}"]
    if config.model.name == "rgcn":
        words.append("--model.root_weight=false")
    return make_config(config.model_dump(), words)


def _sides(work: Workload) -> dict[str, LayerSide]:
    """Make the sides by role, without PyG's if it is not installed or if they are too large."""
    merged = HopperSide(work, merge=True)
    sides: dict[str, LayerSide] = {BY_RELATION: HopperSide(work, merge=False)}
    name = PYG[work.configs[True].model.name]
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
    for role in (BY_RELATION, PYG_ROLE):
        side = sides.get(role)
        if side is None or (role == PYG_ROLE and side.work.configs[True].model.name == "rgat"):
            continue
        error = difference(side.step(0), expected)
        if error > LIMIT:
            problems.append(f"{role}: logits differ by {error:.1e}")
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


def _ratio(
    seconds: Mapping[str, Sequence[float]], pair: tuple[str, str], problems: Sequence[str]
) -> dict[str, Any]:
    role, baseline = pair
    ratio = asdict(paired_ratio(seconds[baseline], seconds[role]))
    if problems:
        ratio = dict.fromkeys(ratio)
    return {"role": role, "baseline": baseline, **ratio}


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
        # No rank trains these batches.
        "batch_size": None,
    }
