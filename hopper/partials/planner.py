"""Who computes what: one computation graph for the whole global batch, each node at its owner.

Every rank expands the frontier of its own nodes and tells the owners of the sources that it found
which rows it needs, hop by hop. Draws do not depend on placement (design.md, invariant 1), so the
ranks' parts make up the subgraph that one process would have sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.graph.block import Block
from hopper.micrograph.frontier import UNSEEN, forget
from hopper.micrograph.sample import NeighborSampler, dropout_key
from hopper.micrograph.subgraph import HopEdges, SampledBlock, Subgraph
from hopper.models.layer import Layer, SumLayer
from hopper.partials.fold import count_pairs, fold_edges
from hopper.partials.frontiers import OwnFrontier, Sources, sort_sources
from hopper.partials.plan import IterationPlan, LayerPlan, Sending
from hopper.partials.wire import Wire
from hopper.partition.placement import Placement

_ID_BYTES: Final = 4
"""of a node id on the wire"""
_ROWS: Final = 0
_SUMS: Final = 1

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class _Request:
    """What a rank wants of another for one hop.

    kind: rows as they are, or partial sums. ids: [n] source nodes, distinct for rows, one per edge
    for sums. sizes: [sums] edges of each sum. weights: [n], of the edges of sums.
    """

    kind: int
    ids: NDArray[np.int32]
    sizes: NDArray[np.int32]
    weights: NDArray[Any]

    @property
    def rows(self) -> int:
        """Rows that answer it."""
        return int(self.ids.size if self.kind == _ROWS else self.sizes.size)

    def header(self) -> list[int]:
        return [self.kind, self.ids.size, self.sizes.size]

    def words(self) -> NDArray[np.int32]:
        return np.concatenate((self.ids, self.sizes, self.weights.view(np.int32)))

    @classmethod
    def read(cls, header: Sequence[int], words: NDArray[np.int32], dtype: Any) -> _Request:
        kind, ids, sizes = header
        return cls(
            kind, words[:ids], words[ids : ids + sizes], words[ids + sizes :].copy().view(dtype)
        )


class Planner:
    """Plans the iterations of one rank, together with the others.

    For graphs of one node type and one relation.

    Parameters
    ----------
    layers: of the model, in order of computation.
    wires: how each layer's rows travel.
    dtype: of the parameters.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        placement: Placement,
        cluster: Cluster,
        layers: Sequence[Layer],
        wires: Sequence[Wire],
        dtype: torch.dtype,
    ) -> None:
        self._sampler = sampler
        self._placement = placement
        self._cluster = cluster
        self._layers = layers
        self._wires = wires
        self._dtype = dtype
        self._number = np.dtype(str(dtype).removeprefix("torch."))
        self._type = sampler.target
        (self._relation,) = sampler.topologies
        count = sampler.original_ids[self._type].size
        self._own_rows = np.full(count, UNSEEN, np.int32)
        self._hop_rows = np.full(count, UNSEEN, np.int32)

    def plan(self, roots: Ids, epoch: int, iteration: int) -> IterationPlan:
        """This rank's part of an iteration; every rank has to call it.

        Parameters
        ----------
        roots: [n] int64 global ids, those that this rank owns; may be empty.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        """
        own = OwnFrontier(self._own_rows)
        try:
            own.enter(np.ascontiguousarray(roots, np.int64))
            layers: list[LayerPlan] = []
            for hop in range(len(self._wires)):
                layers.insert(0, self._plan_hop(hop, own, (epoch, iteration)))
            return IterationPlan(own.nodes, int(roots.size), layers)
        finally:
            forget(own.nodes, self._own_rows)

    def _plan_hop(self, hop: int, own: OwnFrontier, moment: tuple[int, int]) -> LayerPlan:
        layer = len(self._wires) - 1 - hop
        destinations = own.nodes
        drawn = self._sampler.draw(hop, self._relation, destinations, moment)
        found = sort_sources(drawn[1], self._type, self._hop_rows, self._placement)
        own.enter(found.of(self._cluster.rank))
        hop_plan = _Hop(hop, moment, destinations.size, drawn, found)
        folds = self._choose_folds(layer, hop_plan)
        folding = None
        if folds.any():
            folding = self._fold(hop_plan, own, layer, folds)
        wanted = self._requests(hop_plan, folds, folding)
        asked = self._tell(wanted, f"epoch {moment[0]}, iteration {moment[1]}, hop {hop}")
        sending = self._answer(asked, own)
        counts = [request.rows for request in wanted]
        block, own_block, weights = self._blocks(hop_plan, own, folds, folding, counts)
        sums_from = np.flatnonzero(folds).tolist()
        return LayerPlan(own_block, block, weights, sending, counts, sums_from)

    def _choose_folds(self, layer: int, hop: _Hop) -> NDArray[np.bool_]:
        """[ranks]: from whom partial sums take fewer bytes than rows, asking for them included."""
        wire, found = self._wires[layer], hop.found
        if not wire.folds:
            return np.zeros(self._cluster.world, np.bool_)
        edges, sums = count_pairs(hop.offsets, found.owners, self._cluster.world)
        hop.pairs = edges, sums
        rows = np.diff(found.bounds) * (_ID_BYTES + wire.row_bytes)
        added_up = sums * (_ID_BYTES + wire.row_bytes) + edges * (_ID_BYTES + wire.item_bytes)
        cheaper = added_up < rows
        cheaper[self._cluster.rank] = False
        return cheaper

    def _fold(self, hop: _Hop, own: OwnFrontier, layer: int, folds: NDArray[np.bool_]) -> _Folding:
        module = self._layers[layer]
        assert isinstance(module, SumLayer)
        assert hop.pairs is not None
        found = hop.found
        weights = module.edge_weights(self._block(hop, own), self._dtype).numpy()
        ids = found.nodes[found.places]
        folded = fold_edges(
            hop.offsets, found.places, ids, found.owners, weights, folds, *hop.pairs
        )
        return _Folding(*folded)

    def _requests(
        self, hop: _Hop, folds: NDArray[np.bool_], folding: _Folding | None
    ) -> list[_Request]:
        nothing = np.empty(0, np.int32)
        no_weights = np.empty(0, self._number)
        requests = []
        sums_at = edges_at = 0
        for rank in range(self._cluster.world):
            if folding is not None and folds[rank]:
                assert hop.pairs is not None
                edges, sums = (int(each[rank]) for each in hop.pairs)
                part = slice(edges_at, edges_at + edges)
                requests.append(
                    _Request(
                        _SUMS,
                        folding.sum_sources[part],
                        folding.sum_sizes[sums_at : sums_at + sums],
                        folding.sum_weights[part],
                    )
                )
                edges_at += edges
                sums_at += sums
            else:
                ids = nothing
                if rank != self._cluster.rank:
                    ids = hop.found.of(rank).astype(np.int32)
                requests.append(_Request(_ROWS, ids, nothing, no_weights))
        return requests

    def _tell(self, wanted: list[_Request], where: str) -> list[_Request]:
        """Exchange requests; what every rank wants of this one."""
        if self._cluster.world == 1:
            return wanted
        headers = self._cluster.exchange(
            [torch.tensor([request.header()]) for request in wanted],
            [1] * self._cluster.world,
            "control",
            f"planning, {where}",
        )
        shapes = [header[0].tolist() for header in headers]
        words = self._number.itemsize // np.dtype(np.int32).itemsize
        arrived = self._cluster.exchange(
            [torch.from_numpy(request.words()) for request in wanted],
            [ids + sizes + (ids * words if kind == _SUMS else 0) for kind, ids, sizes in shapes],
            "topology",
            f"telling which rows are needed, {where}",
        )
        return [
            _Request.read(shape, each.numpy(), self._number)
            for shape, each in zip(shapes, arrived, strict=True)
        ]

    def _answer(self, asked: list[_Request], own: OwnFrontier) -> Sending:
        """What goes out; sources that others found enter the own frontier, in order of rank."""
        rows = [own.enter(request.ids.astype(np.int64)) for request in asked]
        lengths = [request.rows for request in asked]
        if all(request.kind == _ROWS for request in asked):
            return Sending(lengths, torch.from_numpy(np.concatenate(rows)))
        sizes, weights = [], []
        for request in asked:
            is_sum = request.kind == _SUMS
            ones = np.ones(request.ids.size, self._number)
            sizes.append(request.sizes if is_sum else np.ones(request.ids.size, np.int32))
            weights.append(request.weights if is_sum else ones)
        indptr = np.concatenate(([0], np.cumsum(np.concatenate(sizes), dtype=np.int64)))
        return Sending(
            lengths,
            None,
            Block.of_edges(self._relation, indptr, np.concatenate(rows), own.size),
            torch.from_numpy(np.concatenate(weights)),
        )

    def _blocks(
        self,
        hop: _Hop,
        own: OwnFrontier,
        folds: NDArray[np.bool_],
        folding: _Folding | None,
        counts: list[int],
    ) -> tuple[Block, Block, Tensor | None]:
        """What the layer aggregates over, the own sources alone, and weights where sums arrive."""
        found = hop.found
        block = self._block(hop, own)
        own_block = block.sources_alone(own.size)
        if folding is None:
            return block, own_block, None
        firsts = own.size + np.concatenate(([0], np.cumsum(counts)))[:-1]
        place = np.empty(found.nodes.size, np.int64)
        sums = []
        for rank, first in enumerate(firsts):
            part = slice(found.bounds[rank], found.bounds[rank + 1])
            if rank == self._cluster.rank:
                place[part] = own.rows(found.of(rank))
            elif not folds[rank]:
                place[part] = np.arange(first, first + counts[rank])
            else:
                sums.append(np.arange(first, first + counts[rank]))
        of_sums = np.concatenate(sums)
        columns = folding.columns
        is_sum = columns < 0
        indices = np.empty_like(columns)
        indices[~is_sum] = place[columns[~is_sum]]
        indices[is_sum] = of_sums[-1 - columns[is_sum]]
        folded = Block.of_edges(self._relation, folding.indptr, indices, own.size + sum(counts))
        folded.dst_original, folded.dst_in_degree = block.dst_original, block.dst_in_degree
        folded.iteration_key = block.iteration_key
        return folded, own_block, torch.from_numpy(folding.weights)

    def _block(self, hop: _Hop, own: OwnFrontier) -> SampledBlock:
        """The hop's edges as drawn; sources are the own nodes and, behind them, the others'."""
        nodes = np.concatenate((own.nodes, hop.found.others(self._cluster.rank)))
        subgraph = Subgraph(
            target=self._type,
            nodes={self._type: nodes},
            sizes=[{self._type: hop.destinations}, {self._type: nodes.size}],
            hops=[
                {
                    self._relation: HopEdges(
                        hop.offsets, hop.found.rows(self._cluster.rank, own), hop.positions
                    )
                }
            ],
            topologies=self._sampler.topologies,
            original_ids=self._sampler.original_ids,
            iteration_key=dropout_key(self._sampler.dropout_seed, *hop.moment),
            inclusions=[self._sampler.inclusions[hop.hop]],
        )
        (block,) = subgraph.blocks()
        assert isinstance(block, SampledBlock)
        return block


class _Hop:
    """One hop as this rank has drawn it."""

    def __init__(
        self,
        hop: int,
        moment: tuple[int, int],
        destinations: int,
        drawn: tuple[Ids, Ids, Ids],
        found: Sources,
    ) -> None:
        self.hop = hop
        self.moment = moment
        self.destinations = destinations
        self.offsets, _, self.positions = drawn
        self.found = found
        self.pairs: tuple[Ids, Ids] | None = None
        """edges and destinations by owner of the source, where a fold was considered"""


@dataclass(frozen=True)
class _Folding:
    """What :func:`hopper.partials.fold.fold_edges` returns."""

    indptr: Ids
    columns: Ids
    weights: NDArray[Any]
    sum_sizes: NDArray[np.int32]
    sum_sources: NDArray[np.int32]
    sum_weights: NDArray[Any]
