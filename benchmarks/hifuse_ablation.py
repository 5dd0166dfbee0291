"""HiFuse's optimisations one after the other (its Figure 9), each on and off.

usage: python benchmarks/hifuse_ablation.py --out DIR [--rounds 3] [--batches 8] [--hidden 64]
       [--models rgcn,rgat] [--device cpu] PARTITIONED...

Epochs of two layers, forward and backward, sampling included (fanouts 25 and 20, at most 1,024
roots), over a table of features of hidden width that lies on the device before. Switches:

reorganise  the table is grouped by node type and then by index; off: in an order that mixes types
            (where a row is, is looked up off the clock)
merge       all relations of a layer at once; off: relation by relation
offload     the host selects the edges of each relation as it draws them, and lays them behind one
            another if they are merged; off: one list of edges with their relations goes to the
            device, which selects those of each relation by a mask, as PyG does
parallel    the host's kernels, which draw edges and lay them behind one another, with all of its
            threads; off: with one
pipeline    the next batch is sampled and prepared while the device computes; where that is the
            host, by one thread: a second team of threads slows down the first

Without ``offload`` the list that the device selects from is made off the clock: a sampler without
relations would have it at once. All sides draw by relation, so what such a sampler would save is on
no side. On a CPU the device is the host, and ``offload`` tells what selecting costs.

Sides take turns epoch by epoch in rotated order; a ratio is that of two sides' epochs of a round,
with its interval over rounds. All sides have to come to the same loss.
Writes ``DIR/hifuse_ablation.json`` and prints a table.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[1]))

from benchmarks.layers.sides import merge_hops
from benchmarks.typed_batches import MeasureRequest, ask, header, layer_configs
from hopper.bench.parity import UNSETTLED_LIMIT
from hopper.device_copies import to_device
from hopper.engines import Request
from hopper.engines.assemble import make_model, make_sampler, make_schedule
from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN
from hopper.paired_ratio import paired_ratio
from hopper.partition import PartitionedGraph
from hopper.train.rank import use_threads

RESULT_FILE = "hifuse_ablation.json"
SWITCHES = ("reorganise", "merge", "offload", "parallel", "pipeline")
SIDES: dict[str, tuple[str, ...]] = {
    "none": (),
    "R": SWITCHES[:1],
    "R+M": SWITCHES[:2],
    "R+O": ("reorganise", "offload"),
    "R+O+P": ("reorganise", "offload", "parallel"),
    "R+M+O+P": SWITCHES[:4],
    "R+M+O+P+Pipe": SWITCHES,
}
"""by name, what is on; the letters are the paper's"""


class EdgeList(NamedTuple):
    """All edges of a hop on the host, with their relations.

    sources, destinations, kinds: [edges] int64; kinds are places in ``relations``.
    """

    relations: list[Relation]
    sources: Tensor
    destinations: Tensor
    kinds: Tensor


class Batch(NamedTuple):
    """The parts of a batch that are ready before it is computed."""

    subgraph: Subgraph
    places: dict[str, Tensor]
    blocks: list[TypedBlocks] | None
    """None where the device is to select edges of ``lists``"""
    lists: list[EdgeList]


class Workload:
    """A graph, its features on the device, and the epoch's batches."""

    def __init__(
        self, path: Path, model: str, hidden: int, batches: int, device: torch.device
    ) -> None:
        self.graph = PartitionedGraph.open(path)
        self.device = device
        configs = layer_configs(path, model, hidden)
        schema = self.graph.schema
        self.models: dict[bool, HGNN] = {}
        for merge, config in configs.items():
            built = make_model(Request(config, self.graph)).to(device)
            assert isinstance(built, HGNN)
            self.models[merge] = built
        request = Request(configs[True], self.graph)
        self.sampler = make_sampler(request)
        schedule = make_schedule(request, 1)
        count = min(batches or schedule.iterations, schedule.iterations)
        self.roots = [schedule.batch(0, index).roots for index in range(count)]
        target = schema.target_type()
        generator = torch.Generator().manual_seed(0)
        self.labels = [
            torch.randint(schema.labels[target].classes, (roots.size,), generator=generator).to(
                device
            )
            for roots in self.roots
        ]
        counts = {node_type: kind.count for node_type, kind in schema.node_types.items()}
        starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        table = torch.randn(sum(counts.values()), hidden, generator=generator)
        self._starts = starts
        # The same rows in two orders: a row's place is its number, or that number's place.
        self._mixed = torch.randperm(len(table), generator=generator)
        mixed = torch.empty_like(table)
        mixed[self._mixed] = table
        self._tables = {True: table.to(device), False: mixed.to(device)}
        # No side's clock runs during these.
        batches_of = [
            self.sampler.sample(roots, 0, index) for index, roots in enumerate(self.roots)
        ]
        self.places = {
            reorganised: [
                self._group_places(subgraph, reorganised=reorganised) for subgraph in batches_of
            ]
            for reorganised in (False, True)
        }
        self.lists = [[list_edges(hop) for hop in batch.typed_blocks()] for batch in batches_of]

    def _group_places(self, subgraph: Subgraph, *, reorganised: bool) -> dict[str, Tensor]:
        """Return by type, [nodes] int64, where the table on the device has the rows of a batch."""
        places_by_type = {}
        for node_type, ids in subgraph.nodes.items():
            places_by_type[node_type] = torch.from_numpy(ids) + self._starts[node_type]
            if not reorganised:
                places_by_type[node_type] = self._mixed.index_select(0, places_by_type[node_type])
        return places_by_type

    def rows(self, places: Mapping[str, Tensor], *, reorganised: bool) -> dict[str, Tensor]:
        """Return the rows at some places by type, [nodes, hidden]."""
        table = self._tables[reorganised]
        return {
            node_type: table.index_select(0, to_device(rows, self.device))
            for node_type, rows in places.items()
        }

    def describe(self) -> dict[str, Any]:
        """Return the graph and its batches in numbers."""
        schema = self.graph.schema
        return {
            "graph": schema.name,
            "relations": len(schema.relations),
            "node_types": len(schema.node_types),
            "batches": len(self.roots),
            "roots": [int(roots.size) for roots in self.roots],
        }


def list_edges(hop: TypedBlocks) -> EdgeList:
    """List a hop's edges as a sampler would draw them that knows no relations."""
    relations = list(hop.blocks)
    blocks = [hop.blocks[relation] for relation in relations]
    return EdgeList(
        relations,
        torch.cat([block.indices for block in blocks]),
        torch.cat([block.destinations() for block in blocks]),
        torch.cat([torch.full_like(block.indices, i) for i, block in enumerate(blocks)]),
    )


def select_blocks(
    subgraph: Subgraph, lists: Sequence[EdgeList], device: torch.device
) -> list[TypedBlocks]:
    """Return blocks of a batch whose edges the device selects, relation by relation."""
    parts = []
    for hop, edges in zip(subgraph.typed_blocks(device), lists, strict=True):
        sources, destinations, kinds = (to_device(array, device) for array in edges[1:])
        places = {}
        for number, relation in enumerate(edges.relations):
            mask = kinds == number
            counts = torch.bincount(destinations[mask], minlength=hop.destinations[relation.dst])
            block = hop.blocks[relation]
            places[relation] = Block(
                block.num_src,
                block.num_dst,
                torch.cat((counts.new_zeros(1), counts.cumsum(0))),
                sources[mask],
                relation,
                block.positions,
                block.src,
                block.dst,
            )
        parts.append(replace(hop, blocks=places, prepared={}))
    return parts


class Epochs:
    """One side: an epoch of its switches; ``ahead`` is what prepares batches meanwhile."""

    def __init__(self, work: Workload, on: Sequence[str], ahead: ThreadPoolExecutor) -> None:
        self._work = work
        self._on = frozenset(on)
        self._ahead = ahead
        self._model = work.models["merge" in self._on]
        is_alone = "pipeline" not in self._on or work.device.type != "cpu"
        self._threads = numba.get_num_threads() if "parallel" in self._on and is_alone else 1

    def run(self) -> tuple[float, float]:
        """Return the seconds of an epoch, and the sum of its losses."""
        work = self._work
        total = torch.zeros((), device=work.device)
        began = time.perf_counter()
        for index, batch in enumerate(self._batches()):
            blocks = batch.blocks or select_blocks(batch.subgraph, batch.lists, work.device)
            rows = work.rows(batch.places, reorganised="reorganise" in self._on)
            # The loss is added up on the device, so that the host need not wait for it.
            total += self._step(blocks, rows, work.labels[index])
        if work.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began, float(total)

    def _step(
        self, blocks: list[TypedBlocks], rows: Mapping[str, Tensor], labels: Tensor
    ) -> Tensor:
        model, h = self._model, dict(rows)
        model.zero_grad(set_to_none=True)
        for index, hop in enumerate(blocks):
            h = model.relation_layer(index)(hop, h)
        loss = functional.cross_entropy(model.head(h[model.target]), labels, reduction="sum")
        loss.backward()
        return loss.detach()

    def _batches(self) -> Iterator[Batch]:
        turns = range(len(self._work.roots))
        if "pipeline" not in self._on:
            yield from map(self._prepare, turns)
            return
        coming = self._ahead.submit(self._prepare, 0)
        for turn in turns:
            ready = coming.result()
            if turn + 1 < len(turns):
                coming = self._ahead.submit(self._prepare, turn + 1)
            yield ready

    def _prepare(self, index: int) -> Batch:
        work = self._work
        numba.set_num_threads(self._threads)
        subgraph = work.sampler.sample(work.roots[index], 0, index)
        places = work.places["reorganise" in self._on][index]
        if "offload" not in self._on:
            return Batch(subgraph, places, None, work.lists[index])
        blocks = subgraph.typed_blocks(work.device)
        if "merge" in self._on:
            merge_hops(self._model, blocks)
        return Batch(subgraph, places, blocks, [])


def compare(
    request: MeasureRequest, path: Path, model: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure a graph and model: seconds of every side and round, and ratios over "none"."""
    work = Workload(path, model, request.hidden, request.batches, request.device)
    names, threads = list(SIDES), numba.get_num_threads()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    losses: dict[str, float] = {}
    # One thread for all rounds, as a trainer has one for all epochs.
    with ThreadPoolExecutor(1) as ahead:
        sides = {name: Epochs(work, on, ahead) for name, on in SIDES.items()}
        for turn in range(-1, request.rounds):
            start = turn % len(names)
            for name in [*names[start:], *names[:start]]:
                gc.disable()
                spent, losses[name] = sides[name].run()
                gc.enable()
                numba.set_num_threads(threads)
                if turn >= 0:
                    seconds[name].append(spent)
    reference = losses[names[0]]
    differences = {name: abs(loss - reference) / abs(reference) for name, loss in losses.items()}
    if max(differences.values()) > UNSETTLED_LIMIT:
        raise RuntimeError(f"{work.graph.schema.name} {model}: losses differ by {differences}")
    ratios = {name: asdict(paired_ratio(seconds[names[0]], seconds[name])) for name in names[1:]}
    say(
        f"{work.graph.schema.name} {model}: "
        + ", ".join(f"{name} {ratio['mean']:.2f}" for name, ratio in ratios.items())
    )
    return {
        "model": model,
        **work.describe(),
        "seconds": seconds,
        "times_faster_than_none": ratios,
        "losses_differ_by": differences,
    }


def run(request: MeasureRequest) -> None:
    """Compare, print and write."""
    console = Console()
    result = header(request.device, request.rounds) | {"hidden": request.hidden, "sides": SIDES}
    cells: list[dict[str, Any]] = []
    for path, model in request.cells():
        cells.append(compare(request, path, model, console.print))
        # Results so far stay if time runs out.
        request.write(RESULT_FILE, result | {"cells": cells})
    table = Table(title="times as fast as with none (95 % interval)", title_justify="left")
    for heading in ("graph", "relations", "model", "none, s", *list(SIDES)[1:]):
        table.add_column(heading)
    for cell in cells:
        ratio_texts = map(ratio_text, cell["times_faster_than_none"].values())
        mean = np.mean(cell["seconds"]["none"])
        table.add_row(
            cell["graph"], str(cell["relations"]), cell["model"], f"{mean:.2f}", *ratio_texts
        )
    console.print(table)


def ratio_text(ratio: Mapping[str, Any], places: int = 2) -> str:
    """Write a ratio with its interval, to so many decimal places."""
    mean, low, high = (ratio[bound] for bound in ("mean", "low", "high"))
    interval = "" if low is None else f" ({low:.{places}f} to {high:.{places}f})"
    return f"{mean:.{places}f}{interval}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0 if every graph was measured."""
    request = ask(arguments, __doc__.splitlines()[0], models="rgcn,rgat", rounds=3, batches=8)
    use_threads(0)
    run(request)
    return 0


if __name__ == "__main__":
    sys.exit(main())
