"""Who computes what on a graph of several node types: every node at its owner, layer by layer.

As :mod:`hopper.partials.planner`, for models of :class:`hopper.models.relational.HGNN`: what is
told is by node type, and what travels is the rows that layers read, all of one width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopper.cluster import Cluster
from hopper.graph.block import Block, TypedBlocks
from hopper.micrograph.frontier import UNSEEN, forget
from hopper.micrograph.sample import NeighborSampler, dropout_key
from hopper.micrograph.subgraph import HopEdges, Subgraph
from hopper.partials.frontiers import Ids, OwnFrontier, Sources, sort_sources
from hopper.partition import PartitionBook


@dataclass(frozen=True)
class TypedLayerPlan:
    """One layer's part of a plan; types are in canonical order wherever they stand side by side.

    Attributes
    ----------
    own: by type, this rank's nodes as sources: what their rows are prepared with.
    blocks: destinations are this rank's; sources of a type are its own rows and, behind them, what
        comes from rank 0, from rank 1, ...
    chosen: [n] int64, which of its own rows, all types side by side, go out, those for rank 0
        first.
    lengths, counts: rows for, and from, every rank.
    arrived: by type, [m] int64, its rows among all those received.
    """

    own: Mapping[str, Block]
    blocks: TypedBlocks
    chosen: Tensor
    lengths: list[int]
    counts: list[int]
    arrived: Mapping[str, Tensor]

    def describe(self, row_bytes: int) -> dict[str, Any]:
        """For the run's log: this rank's work, and the rows that travel.

        Parameters
        ----------
        row_bytes: of a row and of its gradient.
        """
        return {
            "own": sum(block.num_src for block in self.own.values()),
            "destinations": sum(self.blocks.destinations.values()),
            "edges": sum(block.num_edges for block in self.blocks.blocks.values()),
            "rows": "as read",
            "row_bytes": row_bytes,
            "sent": sum(self.lengths),
            "received": sum(self.counts),
            "sums_from": [],
        }

    def to(self, device: torch.device) -> TypedLayerPlan:
        """The same plan on another device."""
        blocks = replace(
            self.blocks,
            blocks={each: block.to(device) for each, block in self.blocks.blocks.items()},
        )
        return TypedLayerPlan(
            {each: block.to(device) for each, block in self.own.items()},
            blocks,
            self.chosen.to(device),
            self.lengths,
            self.counts,
            {each: rows.to(device) for each, rows in self.arrived.items()},
        )


@dataclass(frozen=True)
class TypedPlan:
    """A rank's part of one iteration.

    Attributes
    ----------
    nodes: by type, [n] int64 global ids of the nodes whose input rows this rank reads; of the
        target its roots first.
    roots: how many roots it has.
    layers: in order of computation.
    """

    nodes: Mapping[str, Ids]
    roots: int
    layers: list[TypedLayerPlan]

    def to(self, device: torch.device) -> TypedPlan:
        """The same plan with its blocks on another device."""
        if device.type == "cpu":
            return self
        return replace(self, layers=[layer.to(device) for layer in self.layers])


class TypedPlanner:
    """Plans the iterations of one rank, together with the others."""

    def __init__(self, sampler: NeighborSampler, book: PartitionBook, cluster: Cluster) -> None:
        self._sampler = sampler
        self._book = book
        self._cluster = cluster
        self._types = sorted(sampler.original_ids)

        def tables() -> dict[str, Any]:
            counts = {each: sampler.original_ids[each].size for each in self._types}
            return {each: np.full(count, UNSEEN, np.int32) for each, count in counts.items()}

        self._own_rows, self._hop_rows = tables(), tables()

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
        destinations = {each: frontier.size for each, frontier in own.items()}
        drawn = {
            relation: sampler.draw(hop, relation, own[relation.dst].nodes, moment)
            for relation in sampler.topologies
        }
        found: dict[str, Sources] = {}
        for each in self._types:
            parts = [edges[1] for relation, edges in drawn.items() if relation.src == each]
            sources = np.concatenate(parts) if parts else np.empty(0, np.int64)
            found[each] = sort_sources(
                sources, each, self._hop_rows[each], self._book, self._cluster
            )
            own[each].enter(found[each].of(rank))
        where = f"epoch {moment[0]}, iteration {moment[1]}, hop {hop}"
        asked, counts, lengths = self._tell(found, where)
        # Rows stay once given, but where a type's begin side by side is known when all are.
        rows = [{each: own[each].enter(ids) for each, ids in by_type.items()} for by_type in asked]
        firsts = dict(
            zip(self._types, _starts([own[each].size for each in self._types]), strict=True)
        )
        chosen = [firsts[each] + by_type[each] for by_type in rows for each in self._types]
        blocks = self._blocks(hop, moment, own, found, drawn, destinations)
        return TypedLayerPlan(
            {
                each: Block.of_nodes(
                    each, blocks.original[each][: own[each].size], blocks.iteration_key
                )
                for each in self._types
            },
            blocks,
            torch.from_numpy(np.concatenate(chosen)),
            lengths.sum(1).tolist(),
            counts.sum(1).tolist(),
            self._arrivals(counts),
        )

    def _tell(
        self, found: Mapping[str, Sources], where: str
    ) -> tuple[list[dict[str, Ids]], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Tell owners which rows are needed.

        Returns
        -------
        What every rank wants of this one, by type; and [ranks, types] int64, how many rows this
        rank wants of every one, and every one of it.
        """
        cluster = self._cluster
        wanted = np.array(
            [
                [0 if rank == cluster.rank else found[each].of(rank).size for each in self._types]
                for rank in range(cluster.world)
            ]
        )
        if cluster.world == 1:
            nothing = {each: np.empty(0, np.int64) for each in self._types}
            return [nothing], wanted, wanted
        headers = cluster.exchange(
            [torch.from_numpy(row[None]) for row in wanted],
            [1] * cluster.world,
            "control",
            f"planning, {where}",
        )
        asked_of = np.concatenate([header.numpy() for header in headers])
        words = [
            np.concatenate(
                [
                    found[each].of(rank)[: wanted[rank, place]]
                    for place, each in enumerate(self._types)
                ]
            ).astype(np.int32)
            for rank in range(cluster.world)
        ]
        arrived = cluster.exchange(
            [torch.from_numpy(each) for each in words],
            asked_of.sum(1).tolist(),
            "topology",
            f"telling which rows are needed, {where}",
        )
        asked = [
            dict(
                zip(
                    self._types,
                    np.split(ids.numpy().astype(np.int64), np.cumsum(sizes)[:-1]),
                    strict=True,
                )
            )
            for ids, sizes in zip(arrived, asked_of, strict=True)
        ]
        return asked, wanted, asked_of

    def _arrivals(self, counts: np.ndarray[Any, Any]) -> dict[str, Tensor]:
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

    def _blocks(
        self,
        hop: int,
        moment: tuple[int, int],
        own: Mapping[str, OwnFrontier],
        found: Mapping[str, Sources],
        drawn: Mapping[Any, tuple[Ids, Ids, Ids]],
        destinations: dict[str, int],
    ) -> TypedBlocks:
        """The hop's edges as drawn; sources are the own nodes and, behind them, the others'."""
        rank = self._cluster.rank
        nodes = {
            each: np.concatenate((own[each].nodes, found[each].others(rank)))
            for each in self._types
        }
        edges, at = {}, dict.fromkeys(self._types, 0)
        rows = {each: found[each].rows(rank, own[each]) for each in self._types}
        for relation, (offsets, sources, positions) in drawn.items():
            first = at[relation.src]
            at[relation.src] = first + sources.size
            part = rows[relation.src][first : first + sources.size]
            edges[relation] = HopEdges(offsets, part, positions)
        sampler = self._sampler
        subgraph = Subgraph(
            target=sampler.target,
            nodes=nodes,
            sizes=[destinations, {each: ids.size for each, ids in nodes.items()}],
            hops=[edges],
            topologies=sampler.topologies,
            original_ids=sampler.original_ids,
            iteration_key=dropout_key(sampler.dropout_seed, *moment),
            inclusions=[sampler.inclusions[hop]],
        )
        (blocks,) = subgraph.typed_blocks()
        return blocks


def _starts(sizes: Any) -> Ids:
    """[n] int64: where each of several stretches, side by side, begins."""
    return np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
