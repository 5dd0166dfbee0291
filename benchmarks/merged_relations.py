"""All relations of a layer at once against relation by relation, and against PyTorch Geometric.

usage: python -m benchmarks.merged_relations --out DIR [--batches 4] [--hidden 64]
           [--models rgcn,rgat,hgt] [--device cpu] PARTITIONED...

Two layers of a model, forward and backward, on the same sampled batches of every partitioned graph
(fanouts 25 and 20, at most 1,024 roots; on rows of hidden width, so that input projections, which
all sides would share, are left out). Sampling is counted on no side. A side's seconds include what
it makes of a batch's edges and copies to the device (our layout of merged relations, PyG's stacked
edges); those of ``side, prepared`` do not, as if it had been made ahead. A line has the seconds of
a round's batches; ``merged`` over ``RGCNConv`` 2.0 means that merged relations are 2.0x faster. On
``--device cuda`` a side's kernels are counted too (torch.profiler, copies left out).

PyG's sides, where ``torch_geometric`` is installed: ``RGCNConv`` (a loop over relations, HiFuse's
baseline), ``FastRGCNConv`` (a matrix per edge), ``HeteroConv`` of ``SAGEConv`` (a convolution a
relation, which makes rows of all nodes of a batch); for ``rgat``, ``RGATConv``. The first two
compute what ``rgcn`` does, and have to: with the same weights, logits are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.layers.batches import open_workload, parse
from benchmarks.layers.pyg import StackedSide, difference, pyg_sides
from benchmarks.layers.sides import BY_RELATION, MERGED, HopperSide, LayerSide
from benchmarks.rounds import Results, Side, take_turns

SAME = (BY_RELATION, "RGCNConv", "FastRGCNConv")
"""sides that compute what the merged one does"""
TOLERANCE = 1e-3
"""of the difference of logits, over the largest of them"""


def count_kernels(side: LayerSide) -> int:
    """Return the kernels of one pass over all batches."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for batch in range(len(side.work.batches)):
            side.step(batch)
        side.work.wait_for_device()
    on_device = torch.autograd.DeviceType.CUDA
    names = [event.name for event in profiler.events() if event.device_type == on_device]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names)


def facts_of(sides: dict[str, LayerSide]) -> Iterator[tuple[str, str, float]]:
    """Yield what no round changes: sizes, kernels, and how far logits are from ``merged``."""
    work = sides[MERGED].work
    yield "all", "relations", len(work.graph.schema.relations)
    yield "all", "edges", sum(batch.num_edges for batch in work.batches)
    expected = sides[MERGED].step(0)
    for name, side in sides.items():
        if name in SAME:
            off = difference(side.step(0), expected)
            if off > TOLERANCE:
                raise SystemExit(f"{name}: logits differ by {off:.1e}")
            yield name, "difference of logits", off
        if work.device.type == "cuda":
            yield name, "kernels", count_kernels(side)


def run_steps(side: LayerSide, ready: Sequence[Any] = ()) -> Side:
    """Return what computes a batch; ``ready`` are batches that the side has prepared already."""

    def run(batch: int) -> None:
        if ready:
            side.compute(batch, ready[batch])
        else:
            side.step(batch)
        side.work.wait_for_device()

    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options, cells = parse(arguments, __doc__, models="rgcn,rgat,hgt", batches=4)
    results = Results("merged-relations", options.out)
    for path, model in cells:
        work = open_workload(options, path, model)
        merged = HopperSide(work, merge=True)
        sides: dict[str, LayerSide] = {BY_RELATION: HopperSide(work, merge=False), MERGED: merged}
        sides |= pyg_sides(work)
        for name in SAME:
            side = sides.get(name)
            if isinstance(side, StackedSide):
                side.take_weights(merged)
        facts = list(facts_of(sides))
        steps: dict[str, Side] = {}
        for name, side in sides.items():
            ready = [side.prepare(index, batch) for index, batch in enumerate(work.batches)]
            steps |= {name: run_steps(side), f"{name}, prepared": run_steps(side, ready)}
        measured = take_turns(steps, options.rounds, parts=len(work.batches))
        device = options.device.type
        cell = f"{work.graph.schema.name}, {model}, hidden {work.hidden}, {device}"
        others = [name for name in sides if name != MERGED]
        against = {MERGED: others, f"{MERGED}, prepared": [f"{name}, prepared" for name in others]}
        results.add(cell, measured, against, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
