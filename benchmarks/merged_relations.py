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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from typed_batches import Asked, ask, header, layer_config

from hopper.bench.statistics import paired_ratio
from hopper.engines import Request
from hopper.engines.assemble import make_model, make_sampler, make_schedule
from hopper.graph.block import TypedBlocks
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN
from hopper.partition import PartitionedGraph

RESULT_FILE = "merged_relations.json"
BY_RELATION, MERGED = "relation by relation", "merged"
# A matrix per edge: beyond this many numbers a side of PyG is left out.
MOST_NUMBERS = 600_000_000

Step = Callable[[int], Tensor]
"""one batch's forward and backward pass, by number; returns its logits"""


class Workload:
    """A partitioned graph and its sampled batches."""

    def __init__(
        self, path: Path, model: str, hidden: int, batches: int, device: torch.device
    ) -> None:
        self.graph = PartitionedGraph.open(path)
        self.device = device
        self.configs = {
            merge: layer_config(path, model, hidden, merge=merge) for merge in (False, True)
        }
        self.hidden, self.classes = hidden, self._classes()
        request = Request(self.configs[True], self.graph)
        sampler, schedule = make_sampler(request), make_schedule(request, 1)
        count = min(batches or schedule.iterations, schedule.iterations)
        roots = [schedule.batch(0, index).roots for index in range(count)]
        self.batches: list[Subgraph] = [
            sampler.sample(each, 0, index) for index, each in enumerate(roots)
        ]
        generator = torch.Generator().manual_seed(0)
        self.rows = [
            {
                name: torch.randn(len(ids), hidden, generator=generator).to(device)
                for name, ids in each.nodes.items()
            }
            for each in self.batches
        ]
        self.labels = [
            torch.randint(self.classes, (each.num_roots,), generator=generator).to(device)
            for each in self.batches
        ]

    def describe(self) -> dict[str, Any]:
        """The graph and its batches in numbers."""
        schema = self.graph.schema
        return {
            "graph": schema.name,
            "relations": len(schema.relations),
            "node_types": len(schema.node_types),
            "batches": len(self.batches),
            "roots": [each.num_roots for each in self.batches],
            "edges": [each.num_edges for each in self.batches],
        }

    def _classes(self) -> int:
        target = self.graph.schema.target_type()
        return self.graph.schema.labels[target].classes

    def loss(self, logits: Tensor, batch: int) -> Tensor:
        """Cross-entropy with labels drawn at random."""
        return functional.cross_entropy(logits, self.labels[batch], reduction="sum")


def hopper_side(work: Workload, *, merge: bool) -> tuple[Step, HGNN]:
    """Hopper's layers, and the model that they belong to."""
    model = make_model(Request(work.configs[merge], work.graph)).to(work.device)
    assert isinstance(model, HGNN)

    def step(batch: int) -> Tensor:
        # New blocks: nothing of an earlier pass is prepared in them.
        blocks = work.batches[batch].typed_blocks(work.device)
        model.zero_grad(set_to_none=True)
        h: dict[str, Tensor] = dict(work.rows[batch])
        for index, hop in enumerate(blocks):
            h = model.relation_layer(index)(hop, h)
        logits: Tensor = model.head(h[model.target])
        work.loss(logits, batch).backward()
        return logits.detach()

    return step, model


class Stacked:
    """A hop as PyG's relational convolutions want it: nodes of all types behind one another."""

    def __init__(self, hop: TypedBlocks, relations: Mapping[Any, int]) -> None:
        types = sorted(hop.sources)
        sources = dict(
            zip(types, accumulate((hop.sources[t] for t in types), initial=0), strict=False)
        )
        ends = dict(
            zip(types, accumulate((hop.destinations[t] for t in types), initial=0), strict=False)
        )
        self.destinations = sum(hop.destinations[each] for each in types)
        edges, kinds = [], []
        for relation, block in hop.blocks.items():
            edges.append(
                torch.stack(
                    (
                        block.indices + sources[relation.src],
                        block.destinations() + ends[relation.dst],
                    )
                )
            )
            kinds.append(torch.full_like(block.indices, relations[relation]))
        self.edge_index, self.edge_type = torch.cat(edges, 1), torch.cat(kinds)
        self.places = {t: slice(ends[t], ends[t] + hop.destinations[t]) for t in types}


def stacked_side(work: Workload, make: Callable[[int, int, int], torch.nn.Module]) -> Step:
    """Two of PyG's convolutions over stacked nodes.

    Parameters
    ----------
    make: from the widths of rows and results, and the number of relations.
    """
    relations = {each: place for place, each in enumerate(sorted(work.graph.schema.relations))}
    convolutions = torch.nn.ModuleList(
        make(work.hidden, width, len(relations)) for width in (work.hidden, work.classes)
    ).to(work.device)
    hops = [
        [Stacked(hop, relations) for hop in each.typed_blocks(work.device)] for each in work.batches
    ]
    rows = [torch.cat([each[name] for name in sorted(each)]) for each in work.rows]
    target = work.graph.schema.target_type()

    def step(batch: int) -> Tensor:
        convolutions.zero_grad(set_to_none=True)
        h = rows[batch]
        for index, (convolution, hop) in enumerate(zip(convolutions, hops[batch], strict=True)):
            h = convolution((h, h[: hop.destinations]), hop.edge_index, hop.edge_type)
            if index == 0:
                h = h.relu()
        logits = h[hops[batch][-1].places[target]]
        work.loss(logits, batch).backward()
        return logits.detach()

    step.convolutions = convolutions  # type: ignore[attr-defined]
    return step


def hetero_side(work: Workload) -> Step:
    """PyG's HeteroConv: a convolution a relation, over dictionaries."""
    from torch_geometric.nn import HeteroConv, SAGEConv

    names = {
        each: (each.src, each.rel.replace(".", "_"), each.dst)
        for each in sorted(work.graph.schema.relations)
    }
    convolutions = torch.nn.ModuleList(
        HeteroConv(
            {
                name: SAGEConv((work.hidden, work.hidden), width, root_weight=False, bias=False)
                for name in names.values()
            },
            aggr="sum",
        )
        for width in (work.hidden, work.classes)
    ).to(work.device)
    hops = [
        [
            {
                names[relation]: torch.stack((block.indices, block.destinations()))
                for relation, block in hop.blocks.items()
                if block.num_edges
            }
            for hop in each.typed_blocks(work.device)
        ]
        for each in work.batches
    ]
    target = work.graph.schema.target_type()

    def step(batch: int) -> Tensor:
        convolutions.zero_grad(set_to_none=True)
        h: dict[str, Tensor] = {name: x for name, x in work.rows[batch].items() if len(x)}
        for index, (convolution, edges) in enumerate(zip(convolutions, hops[batch], strict=True)):
            made = convolution(h, edges)
            h = h | {name: x.relu() for name, x in made.items()} if index == 0 else made
        logits = h[target][: work.batches[batch].num_roots]
        work.loss(logits, batch).backward()
        return logits.detach()

    return step


def pyg_sides(work: Workload, model: str) -> dict[str, Step]:
    """What PyG offers for a model; nothing where it is not installed, or where memory is short."""
    try:
        from torch_geometric.nn import FastRGCNConv, RGATConv, RGCNConv
    except ImportError:
        return {}
    most = max(each.num_edges for each in work.batches) * work.hidden * work.hidden
    if model == "rgat":
        if most > MOST_NUMBERS:
            return {}

        def attention(width: int, out: int, relations: int) -> torch.nn.Module:
            return RGATConv(
                width, out, relations, attention_mechanism="within-relation",
                attention_mode="additive-self-attention", heads=1, dim=1,
            )  # fmt: skip

        return {"RGATConv": stacked_side(work, attention)}
    if model != "rgcn":
        return {}
    sides = {
        "RGCNConv": stacked_side(
            work, lambda i, o, r: RGCNConv(i, o, r, root_weight=False, bias=False)
        ),
        "HeteroConv": hetero_side(work),
    }
    if most <= MOST_NUMBERS:
        sides["FastRGCNConv"] = stacked_side(
            work, lambda i, o, r: FastRGCNConv(i, o, r, root_weight=False, bias=False)
        )
    return sides


def compare_logits(work: Workload, own: HGNN, merged: Step, side: Step) -> float:
    """Largest relative difference of PyG's logits to ours, with our weights."""
    relations = sorted(work.graph.schema.relations)
    convolutions = side.convolutions  # type: ignore[attr-defined]
    with torch.no_grad():
        for index, convolution in enumerate(convolutions):
            layer = own.relation_layer(index)
            for place, relation in enumerate(relations):
                if relation in layer.relations:
                    weight = layer.aggregation(relation).weight.weight
                    convolution.weight[place] = weight.t()
    expected, found = merged(0), side(0)
    return float((found - expected).abs().max() / expected.abs().max())


def count_kernels(step: Step, batches: int, device: torch.device) -> int | None:
    """Kernels of one pass over all batches; None where there is no GPU."""
    if device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for batch in range(batches):
            step(batch)
        torch.cuda.synchronize()
    on_device = [
        each.name
        for each in profiler.events()
        if each.device_type == torch.autograd.DeviceType.CUDA
    ]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in on_device)


def compare(asked: Asked, path: Path, model: str, say: Callable[[str], None]) -> dict[str, Any]:
    """One graph and model: seconds of every side and round, and ratios."""
    work = Workload(path, model, asked.hidden, asked.batches, asked.device)
    merged, own = hopper_side(work, merge=True)
    apart, _ = hopper_side(work, merge=False)
    sides: dict[str, Step] = {BY_RELATION: apart, MERGED: merged} | pyg_sides(work, model)
    difference = {
        BY_RELATION: float((apart(0) - merged(0)).abs().max() / merged(0).abs().max())
    } | {
        name: compare_logits(work, own, merged, sides[name])
        for name in ("RGCNConv", "FastRGCNConv")
        if name in sides
    }
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, asked.rounds):
        spent = dict.fromkeys(names, 0.0)
        for batch in range(len(work.batches)):
            start = (turn + batch) % len(names)
            for name in [*names[start:], *names[:start]]:
                gc.disable()
                began = time.perf_counter()
                sides[name](batch)
                if work.device.type == "cuda":
                    torch.cuda.synchronize()
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
        + ", ".join(f"{name} {each['mean']:.2f}" for name, each in ratios.items())
    )
    return {
        "model": model,
        "hidden": work.hidden,
        **work.describe(),
        "seconds": seconds,
        "kernels": {
            name: count_kernels(side, len(work.batches), work.device)
            for name, side in sides.items()
        },
        "merged_times_faster_than": ratios,
        "logits_differ_by": difference,
    }


def run(asked: Asked) -> None:
    """Compare, print and write."""
    console = Console()
    cells = [compare(asked, path, model, console.print) for path, model in asked.cells()]
    try:
        geometric = version("torch_geometric")
    except PackageNotFoundError:
        geometric = None
    result = header(asked.device, asked.rounds) | {"cells": cells}
    result["versions"] |= {"torch_geometric": geometric}
    asked.write(RESULT_FILE, result)
    table = Table(title="merged relations: times as fast (95 % interval)", title_justify="left")
    for heading in ("graph", "relations", "model", "edges a batch", "merged, ms a batch"):
        table.add_column(heading)
    others = list(
        dict.fromkeys(name for cell in cells for name in cell["merged_times_faster_than"])
    )
    for name in others:
        table.add_column(f"over {name}")
    for cell in cells:
        mean = sum(cell["seconds"][MERGED]) / asked.rounds / cell["batches"]
        ratios = cell["merged_times_faster_than"]
        told = [
            f"{ratios[n]['mean']:.2f} ({ratios[n]['low']:.2f}-{ratios[n]['high']:.2f})"
            if n in ratios and ratios[n]["low"] is not None
            else "—"
            for n in others
        ]
        table.add_row(
            cell["graph"], str(cell["relations"]), cell["model"],
            f"{sum(cell['edges']) / cell['batches']:,.0f}", f"{1000 * mean:.1f}", *told,
        )  # fmt: skip
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if every graph was measured."""
    asked = ask(arguments, __doc__.splitlines()[0], models="rgcn,rgat,hgt", rounds=5, batches=4)
    run(asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
