"""Who computes what on a graph of several node types: every node at its owner, layer by layer.

As :mod:`hopper.partials.planner`, for models of :class:`hopper.models.relational.HGNN`. What
travels is the rows that layers read, each once for a rank whatever the number of relations that
read it, or, where relations are added up, one partial sum per destination over all relations of the
sender.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster import Cluster
from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.frontier import UNSEEN, forget
from hopper.micrograph.sample import NeighborSampler, dropout_key
from hopper.micrograph.subgraph import HopEdges, Subgraph
from hopper.models.layer import SumLayer
from hopper.models.relational import RelationLayer
from hopper.partials.frontiers import Ids, OwnFrontier, Sources, sort_sources
from hopper.partials.typed_plan import SumsIn, SumsOut, TypedLayerPlan, TypedPlan
from hopper.partition.placement import Placement

_ID_BYTES: Final = 4
"""of a node id, or of the number of a sum, on the wire"""


class TypedPlanner:
    """Plans the iterations of one rank, together with the others.

    Parameters
    ----------
    layers: of the model, in order of computation.
    hidden: width of the rows that layers read.
    item_bytes: of a number on the wire.
    dtype: of the parameters.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        placement: Placement,
        cluster: Cluster,
        layers: Sequence[RelationLayer],
        hidden: int,
        item_bytes: int,
        dtype: torch.dtype,
    ) -> None:
        self._sampler = sampler
        self._placement = placement
        self._cluster = cluster
        self._layers = layers
        # There and, as a gradient, back.
        self._row_bytes = 2 * hidden * item_bytes
        self._item_bytes = item_bytes
        self._dtype = dtype
        self._number = np.dtype(str(dtype).removeprefix("torch."))
        self._types = sorted(sampler.original_ids)
        self._relations = sorted(sampler.topologies)
        counts = {each: sampler.original_ids[each].size for each in self._types}
        self._own_rows, self._hop_rows = (
            {each: np.full(count, UNSEEN, np.int32) for each, count in counts.items()}
            for _ in range(2)
        )

    def plan(self, roots: Ids, epoch: int, iteration: int) -> TypedPlan:
        """This rank's part of an iteration; every rank has to call it.

        Parameters
        ----------
        roots: [n] int64 global ids, those that this rank owns; may be empty.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        """
        own = {each: OwnFrontier(self._own_rows[each]) for each in self._types}
        try:
            own[self._sampler.target].enter(np.ascontiguousarray(roots, np.int64))
            layers: list[TypedLayerPlan] = []
            for hop in range(len(self._sampler.fanouts)):
                layers.insert(0, self._plan_hop(hop, own, (epoch, iteration)))
            nodes = {each: frontier.nodes for each, frontier in own.items()}
            return TypedPlan(nodes, int(roots.size), layers)
        finally:
            for each, frontier in own.items():
                forget(frontier.nodes, self._own_rows[each])

    def _plan_hop(
        self, hop: int, own: Mapping[str, OwnFrontier], moment: tuple[int, int]
    ) -> TypedLayerPlan:
        rank, sampler = self._cluster.rank, self._sampler
        layer = self._layers[len(self._layers) - 1 - hop]
        destinations = {each: frontier.size for each, frontier in own.items()}
        drawn = {
            relation: sampler.draw(hop, relation, own[relation.dst].nodes, moment)
            for relation in self._relations
        }
        found = self._sort_sources(drawn)
        for each in self._types:
            own[each].enter(found[each].of(rank))
        hop_plan = _Hop(self._relations, self._types, destinations, drawn, found, sampler, hop)
        sums = self._choose_sums(layer, hop_plan)
        if sums is not None:
            # Weights are those of all edges, wherever these are added up.
            sums.weights = self._weights(layer, hop_plan, own, moment)
        where = f"epoch {moment[0]}, iteration {moment[1]}, hop {hop}"
        asked, wanted = self._tell(hop_plan, sums, where)
        rows = [request.enter_rows(own, self._types) for request in asked]
        entered = [request.enter(own, self._relations) for request in asked]
        # Rows stay once given, but where a type's begin side by side is known when all are.
        firsts = _starts([own[each].size for each in self._types])
        chosen = [first + part for parts in rows for first, part in zip(firsts, parts, strict=True)]
        blocks = hop_plan.blocks(own, moment, rank, sums)
        return TypedLayerPlan(
            {each: blocks.nodes(each, own[each].size) for each in self._types},
            blocks,
            torch.from_numpy(np.concatenate(chosen)),
            [sum(part.size for part in parts) for parts in rows],
            wanted.sum(1).tolist(),
            self._arrivals(wanted),
            None if sums is None else self._sums_out(asked, entered, own),
            None if sums is None else sums.arriving(hop_plan),
        )

    def _sort_sources(self, drawn: Mapping[Relation, tuple[Ids, Ids, Ids]]) -> dict[str, Sources]:
        """By type, the distinct sources of all relations, by owner."""
        found = {}
        for each in self._types:
            parts = [drawn[relation][1] for relation in self._relations if relation.src == each]
            sources = np.concatenate(parts) if parts else np.empty(0, np.int64)
            stored = self._sampler.stored_as.get(each, each)
            found[each] = sort_sources(sources, stored, self._hop_rows[each], self._placement)
        return found

    def _choose_sums(self, layer: RelationLayer, hop: _Hop) -> _Sums | None:
        """From whom partial sums take fewer bytes than rows, asking for them included; None where
        the layer does not add its relations up."""
        if not adds_up(layer):
            return None
        width = int(np.prod(layer.nothing))
        sums = _Sums(hop, self._cluster.world, self._number)
        rows = np.array(
            [
                sum(hop.found[each].of(rank).size for each in self._types)
                for rank in range(self._cluster.world)
            ]
        )
        as_rows = rows * (_ID_BYTES + self._row_bytes)
        as_sums = sums.counts * 2 * width * self._item_bytes
        as_sums += sums.edges * (2 * _ID_BYTES + self._number.itemsize)
        sums.chosen = as_sums < as_rows
        sums.chosen[self._cluster.rank] = False
        return sums

    def _weights(
        self,
        layer: RelationLayer,
        hop: _Hop,
        own: Mapping[str, OwnFrontier],
        moment: tuple[int, int],
    ) -> dict[Relation, NDArray[Any]]:
        """By relation that the layer reads, [edges]: the weights of all drawn edges."""
        blocks = hop.blocks(own, moment, self._cluster.rank, None).blocks
        weights = {}
        for relation in layer.relations:
            aggregation = layer.aggregation(relation)
            assert isinstance(aggregation, SumLayer)
            weights[relation] = aggregation.edge_weights(blocks[relation], self._dtype).numpy()
        return weights

    def _tell(
        self, hop: _Hop, sums: _Sums | None, where: str
    ) -> tuple[list[_Request], NDArray[np.int64]]:
        """Tell owners what is needed of them.

        Returns
        -------
        What every rank wants of this one; and [ranks, types] int64, how many rows this one wants.
        """
        cluster = self._cluster
        requests = [
            _Request.of(hop, sums, rank, rank == cluster.rank, self._number)
            for rank in range(cluster.world)
        ]
        wanted = np.array([[part.size for part in request.rows] for request in requests])
        if cluster.world == 1:
            return requests, wanted
        headers = cluster.exchange(
            [torch.from_numpy(request.header()[None]) for request in requests],
            [1] * cluster.world,
            "control",
            f"planning, {where}",
        )
        shapes = [header[0].numpy() for header in headers]
        types = len(self._types)
        arrived = cluster.exchange(
            [torch.from_numpy(request.words()) for request in requests],
            [_Request.count_words(shape, types, self._number) for shape in shapes],
            "topology",
            f"telling which rows are needed, {where}",
        )
        asked = [
            _Request.read(shape, words.numpy(), types, self._number)
            for shape, words in zip(shapes, arrived, strict=True)
        ]
        return asked, wanted

    def _sums_out(
        self,
        asked: Sequence[_Request],
        entered: Sequence[Sequence[Ids]],
        own: Mapping[str, OwnFrontier],
    ) -> SumsOut:
        """What this rank adds up for others, those for rank 0 first."""
        firsts = _starts([request.sums for request in asked])
        total = sum(request.sums for request in asked)
        blocks, weights = {}, {}
        for place, relation in enumerate(self._relations):
            sizes = np.concatenate(
                [first + request.edges[place].numbers
                 for first, request in zip(firsts, asked, strict=True)]
            )  # fmt: skip
            if not sizes.size:
                continue
            indptr = np.zeros(total + 1, np.int64)
            np.cumsum(np.bincount(sizes, minlength=total), out=indptr[1:])
            indices = np.concatenate([rows[place] for rows in entered])
            blocks[relation] = Block.of_edges(
                relation, indptr, indices, num_src=own[relation.src].size
            )
            parts = [request.edges[place].weights for request in asked]
            weights[relation] = torch.from_numpy(np.concatenate(parts))
        return SumsOut(blocks, weights, [request.sums for request in asked])

    def _arrivals(self, counts: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """By type, where its rows are among all those that come, rank by rank and type by type."""
        starts = _starts(counts.reshape(-1)).reshape(counts.shape)
        found = {}
        for place, each in enumerate(self._types):
            parts = [
                np.arange(start, start + count)
                for start, count in zip(starts[:, place], counts[:, place], strict=True)
            ]
            found[each] = torch.from_numpy(np.concatenate(parts))
        return found


def adds_up(layer: RelationLayer) -> bool:
    """Whether all that its destinations read may be added up where it lives."""
    return layer.combination.algebra == "sum" and all(
        isinstance(layer.aggregation(each), SumLayer) for each in layer.relations
    )


class _Hop:
    """One hop as this rank has drawn it."""

    def __init__(
        self,
        relations: Sequence[Relation],
        types: Sequence[str],
        destinations: dict[str, int],
        drawn: Mapping[Relation, tuple[Ids, Ids, Ids]],
        found: Mapping[str, Sources],
        sampler: NeighborSampler,
        hop: int,
    ) -> None:
        self.relations = relations
        self.types = types
        self.destinations = destinations
        self.drawn = drawn
        self.found = found
        self._sampler = sampler
        self._hop = hop
        self.parts: dict[Relation, slice] = {}
        """by relation, its edges among those of all relations with the same source type"""
        at = dict.fromkeys(types, 0)
        for relation in relations:
            first = at[relation.src]
            at[relation.src] = first + drawn[relation][1].size
            self.parts[relation] = slice(first, at[relation.src])

    def owners(self, relation: Relation) -> NDArray[np.int16]:
        """[edges]: the rank that owns each edge's source."""
        return self.found[relation.src].owners[self.parts[relation]]

    def ends(self, relation: Relation) -> Ids:
        """[edges]: each edge's destination."""
        offsets = self.drawn[relation][0]
        return np.repeat(np.arange(offsets.size - 1), np.diff(offsets))

    def blocks(
        self,
        own: Mapping[str, OwnFrontier],
        moment: tuple[int, int],
        rank: int,
        sums: _Sums | None,
    ) -> TypedBlocks:
        """The hop's edges, without those that others add up; sources are the own nodes and, behind
        them, the others' of whom rows come."""
        left = [] if sums is None else np.flatnonzero(sums.chosen).tolist()
        found = {each: self.found[each].without(left) for each in self.types}
        nodes = {
            each: np.concatenate((own[each].nodes, found[each].others(rank))) for each in self.types
        }
        rows = {each: found[each].rows(rank, own[each]) for each in self.types}
        edges = {}
        for relation, (offsets, _, positions) in self.drawn.items():
            part = rows[relation.src][self.parts[relation]]
            if left:
                assert sums is not None
                kept = ~sums.chosen[self.owners(relation)]
                offsets = np.concatenate(([0], np.cumsum(kept)))[offsets]
                part, positions = part[kept], positions[kept]
            edges[relation] = HopEdges(offsets, part, positions)
        sampler = self._sampler
        subgraph = Subgraph(
            target=sampler.target,
            nodes=nodes,
            sizes=[self.destinations, {each: ids.size for each, ids in nodes.items()}],
            hops=[edges],
            topologies=sampler.topologies,
            original_ids=sampler.original_ids,
            iteration_key=dropout_key(sampler.dropout_seed, *moment),
            inclusions=[sampler.inclusions[self._hop]],
            drawn_as=sampler.drawn_as,
            stored_as=sampler.stored_as,
        )
        (blocks,) = subgraph.typed_blocks()
        return blocks


class _Sums:
    """The partial sums that a hop's destinations could have of every owner of sources.

    Attributes
    ----------
    counts, edges: [ranks], how many sums a rank would send, and of how many edges.
    chosen: [ranks] bool, of whom they are asked for.
    weights: by relation, [edges].
    """

    def __init__(self, hop: _Hop, world: int, number: np.dtype[Any]) -> None:
        self.bases = dict(
            zip(hop.types, _starts([hop.destinations[each] for each in hop.types]), strict=True)
        )
        self.reached = np.zeros((sum(hop.destinations.values()), world), np.bool_)
        self.edges = np.zeros(world, np.int64)
        for relation in hop.relations:
            owners = hop.owners(relation)
            self.reached[self.bases[relation.dst] + hop.ends(relation), owners] = True
            self.edges += np.bincount(owners, minlength=world)
        self.counts = self.reached.sum(0)
        self.chosen = np.zeros(world, np.bool_)
        self.weights: dict[Relation, NDArray[Any]] = {}
        self._number = number

    def numbers(self, rank: int) -> Ids:
        """[destinations of all types]: the number of each one's sum among those of a rank."""
        return np.cumsum(self.reached[:, rank]) - 1

    def arriving(self, hop: _Hop) -> SumsIn:
        """Where sums go when they come, and the weights of the edges that are left."""
        counts = np.where(self.chosen, self.counts, 0)
        firsts = _starts(counts)
        places: dict[str, tuple[list[Ids], list[Ids]]] = {each: ([], []) for each in hop.types}
        for rank in np.flatnonzero(self.chosen):
            numbers = self.numbers(int(rank))
            for each, (rows, ends) in places.items():
                base, count = self.bases[each], hop.destinations[each]
                mine = np.flatnonzero(self.reached[base : base + count, rank])
                rows.append(firsts[rank] + numbers[base + mine])
                ends.append(mine)
        weights = {}
        for relation, all_weights in self.weights.items():
            kept = ~self.chosen[hop.owners(relation)]
            weights[relation] = torch.from_numpy(np.ascontiguousarray(all_weights[kept]))
        return SumsIn(
            counts.tolist(),
            {each: (_joined(rows), _joined(ends)) for each, (rows, ends) in places.items()},
            weights,
        )


@dataclass(frozen=True)
class _SumEdges:
    """The edges of one relation that another rank adds up, in order of their sums.

    ids: [n] int32 sources. numbers: [n] int32, which sum each is part of. weights: [n].
    """

    ids: NDArray[np.int32]
    numbers: NDArray[np.int32]
    weights: NDArray[Any]


@dataclass(frozen=True)
class _Request:
    """What a rank wants of another for one hop.

    rows: by type, [n] int32 ids whose rows. sums: how many sums. edges: by relation, of the sums.
    """

    rows: list[NDArray[np.int32]]
    sums: int
    edges: list[_SumEdges]

    @classmethod
    def of(
        cls, hop: _Hop, sums: _Sums | None, rank: int, is_self: bool, number: np.dtype[Any]
    ) -> _Request:
        """What is wanted of a rank: its rows or, where that is chosen, its sums."""
        none = np.empty(0, np.int32)
        nothing = _SumEdges(none, none, np.empty(0, number))
        if is_self:
            return cls([none] * len(hop.types), 0, [nothing] * len(hop.relations))
        if sums is None or not sums.chosen[rank]:
            rows = [hop.found[each].of(rank).astype(np.int32) for each in hop.types]
            return cls(rows, 0, [nothing] * len(hop.relations))
        numbers, edges = sums.numbers(rank), []
        for relation in hop.relations:
            if relation not in sums.weights:
                edges.append(nothing)
                continue
            mine = np.flatnonzero(hop.owners(relation) == rank)
            ends = sums.bases[relation.dst] + hop.ends(relation)[mine]
            edges.append(
                _SumEdges(
                    hop.drawn[relation][1][mine].astype(np.int32),
                    numbers[ends].astype(np.int32),
                    sums.weights[relation][mine],
                )
            )
        return cls([none] * len(hop.types), int(sums.counts[rank]), edges)

    def header(self) -> NDArray[np.int64]:
        """How long everything is."""
        return np.array(
            [*(part.size for part in self.rows), self.sums, *(each.ids.size for each in self.edges)]
        )

    def words(self) -> NDArray[np.int32]:
        """All of it as one array."""
        parts = [*self.rows]
        for each in self.edges:
            parts += [each.ids, each.numbers, each.weights.view(np.int32)]
        return np.concatenate(parts)

    @staticmethod
    def count_words(header: NDArray[np.int64], types: int, number: np.dtype[Any]) -> int:
        """How many :meth:`words` follow a header."""
        per_edge = 2 + number.itemsize // 4
        return int(header[:types].sum() + per_edge * header[types + 1 :].sum())

    @classmethod
    def read(
        cls, header: NDArray[np.int64], words: NDArray[np.int32], types: int, number: np.dtype[Any]
    ) -> _Request:
        """From what was sent."""
        at = 0

        def take(count: int) -> NDArray[np.int32]:
            nonlocal at
            at += count
            return words[at - count : at]

        rows = [take(int(count)) for count in header[:types]]
        edges = []
        for count in header[types + 1 :]:
            ids, numbers = take(int(count)), take(int(count))
            weights = take(int(count) * (number.itemsize // 4)).copy().view(number)
            edges.append(_SumEdges(ids, numbers, weights))
        return cls(rows, int(header[types]), edges)

    def enter_rows(self, own: Mapping[str, OwnFrontier], types: Sequence[str]) -> list[Ids]:
        """By type, [n] int64 the own rows that are asked for, which enter the frontier."""
        return [
            own[each].enter(part.astype(np.int64))
            for each, part in zip(types, self.rows, strict=True)
        ]

    def enter(self, own: Mapping[str, OwnFrontier], relations: Sequence[Relation]) -> list[Ids]:
        """By relation, [n] int64 the own rows of the sums' sources, which enter the frontier."""
        return [
            own[relation.src].enter(edges.ids.astype(np.int64))
            for relation, edges in zip(relations, self.edges, strict=True)
        ]


def _joined(parts: Sequence[Ids]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, np.int64))


def _starts(sizes: Any) -> Ids:
    """[n] int64: where each of several stretches, side by side, begins."""
    return np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
