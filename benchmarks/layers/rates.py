"""How fast neighbours are added up, beside what the machine can do: arithmetic and memory.

What a sum over edges has to do is counted, not measured: an addition (weighted: and a product) for
every number of every edge; every edge's row and indices are read, every row of a result is written.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from benchmarks.layers.batches import Workload
from benchmarks.layers.pyg import StackedSide
from benchmarks.layers.sides import HopperSide
from hopper.graph.block import Edges
from hopper.models.merged import MergedRelations
from hopper.ops import copy_sum, weighted_sum

_TRIAD_NUMBERS: Final = 1 << 24
"""of each of three arrays: 64 MiB, beyond any cache"""
_MATRIX: Final = 2048
_MACHINE_ROUNDS: Final = 5
_FLOAT, _INDEX = 4, 8
"""bytes of a number and of an index"""


class Rates(NamedTuple):
    """Operations of floating-point numbers in a second, and bytes in a second."""

    arithmetic: float
    memory: float


@dataclass(frozen=True)
class Aggregation:
    """Sums over edges that one side takes for all batches, one a call; floating-point operations
    of all of them, and bytes that they read and write."""

    calls: Sequence[Callable[[], object]]
    operations: int
    nbytes: int

    def seconds(self) -> float:
        """Return how long all of them take now."""
        return timeit.timeit(lambda: [call() for call in self.calls], number=1)

    def rates(self, seconds: float) -> Rates:
        """Return the rates of a call that took some seconds."""
        return Rates(self.operations / seconds, self.nbytes / seconds)


def measure_machine() -> Rates:
    """Return the processors' own rates: a product of two matrices, and STREAM's triad ``a = b + s
    c`` (McCalpin, 1995), which moves three numbers for each of its results; the best of a few."""
    matrix = torch.randn(_MATRIX, _MATRIX)
    product = torch.empty_like(matrix)
    arithmetic = 2 * _MATRIX**3 / _least_seconds(lambda: torch.mm(matrix, matrix, out=product))
    b, c = (torch.randn(_TRIAD_NUMBERS) for _ in range(2))
    a = torch.empty_like(b)
    moved = 3 * _FLOAT * _TRIAD_NUMBERS
    return Rates(arithmetic, moved / _least_seconds(lambda: torch.add(b, c, alpha=3.0, out=a)))


def _least_seconds(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=1, repeat=1 + _MACHINE_ROUNDS))


def hopper_aggregation(side: HopperSide, *, weighted: bool) -> Aggregation:
    """Return the sums over edges of Hopper's layers: one of every relation and hop, or, where
    relations are merged, one of a hop; ``weighted`` as under attention."""
    patterns: list[tuple[Edges, Tensor]] = []
    for batch in range(len(side.work.batches)):
        rows = side.work.rows[batch]
        blocks = side.work.batches[batch].typed_blocks(side.work.device)
        if side.merge:
            side.model.lay_out(blocks)
            for hop in blocks:
                (merged,) = (x for x in hop.prepared.values() if isinstance(x, MergedRelations))
                h = {name: rows[name][: hop.sources[name]] for name in hop.sources}
                patterns.append((merged.segments(projected=False), merged.sources(h)))
        else:
            patterns += [
                (block, rows[relation.src][: block.num_src])
                for hop in blocks
                for relation, block in hop.blocks.items()
            ]
    calls = [
        partial(weighted_sum, edges, h, h.new_ones(edges.num_edges))
        if weighted
        else partial(copy_sum, edges, h)
        for edges, h in patterns
    ]
    sums = [(edges.num_edges, edges.num_dst) for edges, _ in patterns]
    return _aggregation(calls, sums, side.work, weighted=weighted)


def pyg_aggregation(side: StackedSide, *, by_relation: bool) -> Aggregation:
    """Return PyG's ``scatter`` calls on messages that have been made: once for every relation of a
    hop, as ``RGCNConv`` calls it, or once for a hop, as ``RGATConv`` does."""
    from torch_geometric.utils import scatter

    calls: list[Callable[[], object]] = []
    sums = []
    batches = enumerate(side.work.batches)
    for hop in (hop for number, batch in batches for hop in side.prepare(number, batch)):
        ends = hop.edge_index[1]
        relations = range(len(side.work.graph.schema.relations))
        for index in [ends[hop.edge_type == r] for r in relations] if by_relation else [ends]:
            messages = torch.randn(index.numel(), side.work.hidden)
            calls.append(partial(scatter, messages, index, dim=0, dim_size=hop.destinations))
            sums.append((index.numel(), hop.destinations))
    return _aggregation(calls, sums, side.work, weighted=False)


def _aggregation(
    calls: Sequence[Callable[[], object]], sums: Sequence[tuple[int, int]], work: Workload, *,
    weighted: bool,
) -> Aggregation:  # fmt: skip
    """Count what calls do whose sums have these edges and rows of the result."""
    edges, rows = (sum(counts) for counts in zip(*sums, strict=True))
    by_edge = work.hidden * _FLOAT + _INDEX + (_FLOAT if weighted else 0)
    by_row = work.hidden * _FLOAT + _INDEX
    operations = edges * work.hidden * (2 if weighted else 1)
    return Aggregation(calls, operations, edges * by_edge + rows * by_row)
