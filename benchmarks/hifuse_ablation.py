"""HiFuse's optimisations one after the other (its Figure 9), each on and off.

usage: python -m benchmarks.hifuse_ablation --out DIR [--batches 8] [--hidden 64]
           [--models rgcn,rgat] [--device cpu] PARTITIONED...

Epochs of two layers, forward and backward, sampling included (fanouts 25 and 20, at most 1,024
roots), over a table of features of hidden width that lies on the device before. Switches:

reorganise  the table is grouped by node type and then by index; off: in an order that mixes types
            (where a row is, is looked up off the clock)
merge       all relations of a layer at once; off: relation by relation
offload     the host selects the edges of each relation as it draws them; off: one list of edges
            with their relations, made off the clock, goes to the device, which selects those of
            each relation by a mask, as PyG does. On a CPU this tells what selecting costs
parallel    the host draws and merges edges with all of its threads; off: with one
pipeline    the next batch is prepared while the device computes; where that is the host, by one
            thread: a second team of threads slows down the first

A line has the seconds of an epoch; ``R+M`` over ``none`` 1.5 means that it is 1.5x faster. All
sides have to come to the same loss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numba
import torch
from torch import Tensor

from benchmarks.layers.batches import Workload, open_workload, parse
from benchmarks.layers.sides import HopperSide
from benchmarks.rounds import Results, take_turns
from hopper.bench.parity import UNSETTLED_LIMIT
from hopper.device.copies import to_device
from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.subgraph import Subgraph
from hopper.train.rank import use_threads

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
    """All edges of a hop on the host, [edges] each; ``kinds`` are places in ``relations``."""

    relations: list[Relation]
    sources: Tensor
    destinations: Tensor
    kinds: Tensor


class Batch(NamedTuple):
    """What of a batch is ready before it is computed; no ``blocks`` where the device selects."""

    subgraph: Subgraph
    blocks: list[TypedBlocks] | None
    places: dict[str, Tensor]
    lists: list[EdgeList]


class Table:
    """Rows of all nodes on the device, in an order by type or in one that mixes types."""

    def __init__(self, work: Workload, *, reorganised: bool) -> None:
        counts = {name: kind.count for name, kind in work.graph.schema.node_types.items()}
        starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(sum(counts.values()), work.hidden, generator=generator)
        order = torch.arange(len(rows))
        if not reorganised:
            order = torch.randperm(len(rows), generator=generator)
        # A node's row is the same in both orders.
        self._rows = torch.empty_like(rows).index_copy_(0, order, rows).to(work.device)
        self.places = [
            {name: order[torch.from_numpy(ids) + starts[name]] for name, ids in batch.nodes.items()}
            for batch in work.batches
        ]
        """by batch and type, [nodes] int64: where its rows are"""

    def read(self, places: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the rows at some places by type, [nodes, hidden]."""
        device = self._rows.device
        return {
            name: self._rows.index_select(0, to_device(rows, device))
            for name, rows in places.items()
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
        selected = {}
        for number, relation in enumerate(edges.relations):
            mask, block = kinds == number, hop.blocks[relation]
            counts = torch.bincount(destinations[mask], minlength=hop.destinations[relation.dst])
            indptr = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
            selected[relation] = Block(
                block.num_src, block.num_dst, indptr, sources[mask], relation, block.positions,
                block.src, block.dst,
            )  # fmt: skip
        parts.append(replace(hop, blocks=selected, prepared={}))
    return parts


class Epochs:
    """One side: an epoch of its switches; ``ahead`` is what prepares batches meanwhile."""

    def __init__(
        self, work: Workload, lists: list[list[EdgeList]], on: Sequence[str], table: Table,
        ahead: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        self._work, self._lists, self._on, self._table, self._ahead = work, lists, on, table, ahead
        self._side = HopperSide(work, merge="merge" in on)
        is_alone = "pipeline" not in on or work.device.type != "cpu"
        self._threads = numba.get_num_threads() if "parallel" in on and is_alone else 1
        self.loss = 0.0

    def run(self, _: int) -> None:
        """Compute an epoch. Its loss is added up on the device, so that the host need not wait."""
        work, threads = self._work, numba.get_num_threads()
        total = torch.zeros((), device=work.device)
        for index, batch in enumerate(self._batches()):
            blocks = batch.blocks or select_blocks(batch.subgraph, batch.lists, work.device)
            self._side.parameters.zero_grad(set_to_none=True)
            logits = self._side.logits(self._table.read(batch.places), blocks)
            loss = work.loss(logits, index)
            loss.backward()
            total += loss.detach()
        work.wait_for_device()
        self.loss = float(total)
        numba.set_num_threads(threads)

    def _batches(self) -> Iterator[Batch]:
        turns = range(len(self._work.batches))
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
        numba.set_num_threads(self._threads)
        subgraph, places = self._work.sample(index), self._table.places[index]
        if "offload" not in self._on:
            return Batch(subgraph, None, places, self._lists[index])
        return Batch(subgraph, self._side.prepare(index, subgraph), places, [])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options, cells = parse(arguments, __doc__, models="rgcn,rgat", batches=8)
    use_threads(0)
    results = Results("hifuse-ablation", options.out)
    for path, model in cells:
        work = open_workload(options, path, model)
        lists = [[list_edges(hop) for hop in batch.typed_blocks()] for batch in work.batches]
        tables = {
            reorganised: Table(work, reorganised=reorganised) for reorganised in (False, True)
        }
        # One thread for all rounds, as a trainer has one for all epochs.
        with ThreadPoolExecutor(1) as ahead:
            sides = {
                name: Epochs(work, lists, on, tables["reorganise" in on], ahead)
                for name, on in SIDES.items()
            }
            measured = take_turns({n: side.run for n, side in sides.items()}, options.rounds)
        expected = sides["none"].loss
        for name, side in sides.items():
            if abs(side.loss - expected) > UNSETTLED_LIMIT * abs(expected):
                raise SystemExit(f"{path.name}, {model}, {name}: loss {side.loss}, not {expected}")
        cell = f"{work.graph.schema.name}, {model}, hidden {work.hidden}, {options.device.type}"
        results.add(cell, measured, {name: ["none"] for name in SIDES if name != "none"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
