"""All relations of a layer at once against relation by relation, and against PyTorch Geometric.

usage: python benchmarks/merged_relations.py --out DIR [--rounds 5] [--batches 4] [--hidden 64]
       [--models rgcn,rgat,hgt] [--device cpu] PARTITIONED...

Two layers of a model, forward and backward, on the same sampled batches of every partitioned graph
(fanouts 25 and 20, at most 1,024 roots; on rows of hidden width, so that input projections, which
all sides would share, are left out). Sampling and the conversion of batches are counted on no side;
what a side derives from a batch's edges (our layout of merged relations, PyG's selection of each
relation's edges) is counted. ``--batches 0`` takes a whole epoch. On ``--device cuda`` a side's
kernels are counted too (torch.profiler, one pass over the batches, copies left out). Sides take
turns batch by batch in rotated order; a ratio is that of two sides' sums over a round's batches,
with its interval over rounds.

PyG's sides, where ``torch_geometric`` is installed: ``RGCNConv`` (a loop over relations, HiFuse's
baseline), ``FastRGCNConv`` (a matrix per edge), ``HeteroConv`` of ``SAGEConv`` (a convolution a
relation, which makes rows of all nodes of a batch); for ``rgat``, ``RGATConv``. The first two
compute what ``rgcn`` does, and have to: with the same weights, logits are compared.
Writes ``DIR/merged_relations.json`` and prints a table.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).resolve().parents[1]))

from benchmarks.layers.batches import Workload
from benchmarks.layers.pyg import StackedSide, difference, pyg_sides
from benchmarks.layers.sides import BY_RELATION, MERGED, HopperSide, LayerSide
from benchmarks.typed_batches import MeasureRequest, ask, header, layer_configs
from hopper.paired_ratio import paired_ratio
from hopper.partition import PartitionedGraph

RESULT_FILE = "merged_relations.json"


def count_kernels(side: LayerSide) -> int | None:
    """Return the kernels of one pass over all batches; None where there is no GPU."""
    if side.work.device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for batch in range(len(side.work.batches)):
            side.step(batch)
        side.work.wait_for_device()
    on_device = [
        event.name
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in on_device)


def compare(
    request: MeasureRequest, path: Path, model: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure a graph and model: seconds of every side and round, and ratios."""
    configs = layer_configs(path, model, request.hidden)
    work = Workload(PartitionedGraph.open(path), configs, request.batches, request.device)
    merged_side, separate_side = (HopperSide(work, merge=merge) for merge in (True, False))
    sides: dict[str, LayerSide] = {BY_RELATION: separate_side, MERGED: merged_side} | pyg_sides(
        work
    )
    for name in ("RGCNConv", "FastRGCNConv"):
        pyg_side = sides.get(name)
        if isinstance(pyg_side, StackedSide):
            pyg_side.take_weights(merged_side)
    expected = merged_side.step(0)
    differences = {
        name: difference(sides[name].step(0), expected)
        for name in (BY_RELATION, "RGCNConv", "FastRGCNConv")
        if name in sides
    }
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, request.rounds):
        spent = dict.fromkeys(names, 0.0)
        for batch in range(len(work.batches)):
            start = (turn + batch) % len(names)
            for name in [*names[start:], *names[:start]]:
                gc.disable()
                began = time.perf_counter()
                sides[name].step(batch)
                work.wait_for_device()
                spent[name] += time.perf_counter() - began
                gc.enable()
        if turn >= 0:
            for name in names:
                seconds[name].append(spent[name])
    ratios = {
        name: asdict(paired_ratio(seconds[name], seconds[MERGED]))
        for name in names
        if name != MERGED
    }
    say(
        f"{work.graph.schema.name} {model}: "
        + ", ".join(f"{name} {ratio['mean']:.2f}" for name, ratio in ratios.items())
    )
    return {
        "model": model,
        "hidden": work.hidden,
        **work.describe(),
        "seconds": seconds,
        "kernels": {name: count_kernels(side) for name, side in sides.items()},
        "merged_times_faster_than": ratios,
        "logits_differ_by": differences,
    }


def run(request: MeasureRequest) -> None:
    """Compare, print and write."""
    console = Console()
    try:
        geometric = version("torch_geometric")
    except PackageNotFoundError:
        geometric = None
    result = header(request.device, request.rounds)
    result["versions"] |= {"torch_geometric": geometric}
    cells: list[dict[str, Any]] = []
    for path, model in request.cells():
        cells.append(compare(request, path, model, console.print))
        # Results so far stay if time runs out.
        request.write(RESULT_FILE, result | {"cells": cells})
    table = Table(title="merged relations: times as fast (95 % interval)", title_justify="left")
    for heading in ("graph", "relations", "model", "edges a batch", "merged, ms a batch"):
        table.add_column(heading)
    others = list(
        dict.fromkeys(name for cell in cells for name in cell["merged_times_faster_than"])
    )
    for name in others:
        table.add_column(f"over {name}")
    for cell in cells:
        mean = sum(cell["seconds"][MERGED]) / request.rounds / cell["batches"]
        ratios = cell["merged_times_faster_than"]
        lines = [
            f"{ratios[n]['mean']:.2f} ({ratios[n]['low']:.2f}-{ratios[n]['high']:.2f})"
            if n in ratios and ratios[n]["low"] is not None
            else "—"
            for n in others
        ]
        table.add_row(
            cell["graph"], str(cell["relations"]), cell["model"],
            f"{sum(cell['edges']) / cell['batches']:,.0f}", f"{1000 * mean:.1f}", *lines,
        )  # fmt: skip
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0 if every graph was measured."""
    request = ask(arguments, __doc__.splitlines()[0], models="rgcn,rgat,hgt", rounds=5, batches=4)
    run(request)
    return 0


if __name__ == "__main__":
    sys.exit(main())
