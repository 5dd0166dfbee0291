"""Who computes what: one computation graph for the whole global batch, each node at its owner.

Every rank expands the frontier of its own nodes and tells the owners of the sources that it found
which rows it needs, hop by hop. Draws do not depend on placement (docs/draws.md), so the ranks'
parts make up the subgraph that one process would have sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from hopper.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.micrograph.frontier import UNSEEN, forget
from hopper.micrograph.sample import NeighborSampler
from hopper.models.layer import SumLayer
from hopper.partials.frontiers import Ids, OwnFrontier, Sources, sort_sources
from hopper.partials.hop import Hop
from hopper.partials.hop_blocks import Folding, HopBlocks
from hopper.partials.plan import IterationPlan, LayerPlan, Outgoing
from hopper.partials.requests import Language, Request, SumEdges, ask_owners
from hopper.partials.stack import Stack
from hopper.partials.wire import Kind, Sums, Wires, source_type
from hopper.partition.placement import Placement


class Planner:
    """Plans the iterations of one rank, together with the others.

    Parameters
    ----------
    cluster: what plans are told over.
    wires: how the rows of each layer may travel.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        placement: Placement,
        cluster: Cluster,
        stack: Stack,
        wires: Sequence[Wires],
    ) -> None:
        self._sampler = sampler
        self._placement = placement
        self._cluster = cluster
        self._stack = stack
        self._wires = wires
        self._dtype = next(stack.model.parameters()).dtype
        number = np.dtype(str(self._dtype).removeprefix("torch."))
        self._languages = [
            Language(list(each.forms), relations, number)
            for each, relations in zip(wires, stack.relations, strict=True)
        ]
        counts = {each: ids.size for each, ids in sorted(sampler.original_ids.items())}
        self._own_rows, self._hop_rows = (
            {each: np.full(count, UNSEEN, np.int32) for each, count in counts.items()}
            for _ in range(2)
        )

    def plan(self, roots: Ids, epoch: int, iteration: int) -> IterationPlan:
        """This rank's part of an iteration; every rank has to call it.

        Parameters
        ----------
        roots: [n] int64 global ids, those that this rank owns; may be empty.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        """
        own = {each: OwnFrontier(table) for each, table in self._own_rows.items()}
        try:
            own[self._sampler.target].enter(np.ascontiguousarray(roots, np.int64))
            layers: list[LayerPlan] = []
            for hop in range(self._stack.depth):
                layers.insert(0, self._plan_hop(hop, own, (epoch, iteration)))
            nodes = {each: frontier.nodes for each, frontier in own.items()}
            return IterationPlan(nodes, int(roots.size), layers)
        finally:
            for each, frontier in own.items():
                forget(frontier.nodes, self._own_rows[each])

    def _plan_hop(
        self, number: int, own: Mapping[str, OwnFrontier], moment: tuple[int, int]
    ) -> LayerPlan:
        index = self._stack.depth - 1 - number
        relations, wires = self._stack.relations[index], self._wires[index]
        destinations = {each: frontier.nodes for each, frontier in own.items()}
        drawn = {
            each: self._sampler.draw(number, each, destinations[each.dst], moment)
            for each in relations
        }
        found = self._sort_sources(drawn)
        for each, sources in found.items():
            own[each].enter(sources.nodes[sources.part(self._cluster.rank)])
        cluster, sizes = self._cluster, {each: ids.size for each, ids in destinations.items()}
        hop = Hop(relations, sizes, drawn, found, wires, cluster.rank, cluster.world)
        blocks = HopBlocks(hop, self._sampler, number, moment, cluster.rank)
        folding = self._fold(index, hop, blocks, destinations)
        where = f"epoch {moment[0]}, iteration {moment[1]}, hop {number}"
        wanted = self._requests(hop, blocks, folding)
        asked = ask_owners(cluster, self._languages[index], wanted, where)
        outgoing = self._answer(relations, wires, asked, own)
        typed = blocks.make(own, folding)
        return LayerPlan(
            {each: self._stack.nodes(typed, each, own[each].size) for each in own},
            typed,
            {each: blocks.raw_nodes(each) for each in sorted(wires.raw)},
            {each: torch.from_numpy(part.left.weights) for each, part in folding.items()} or None,
            blocks.more(folding) if wires.merged else {},
            outgoing,
            {kind: blocks.counts(kind) for kind in wires.forms},
        )

    def _sort_sources(self, drawn: Mapping[Relation, tuple[Ids, Ids, Ids]]) -> dict[str, Sources]:
        """By type, the distinct sources of all relations from it, by owner."""
        parts: dict[str, list[Ids]] = {}
        for each, (_, sources, _) in drawn.items():
            parts.setdefault(each.src, []).append(sources)
        found = {}
        for name, own in parts.items():
            stored = self._sampler.stored_as.get(name, name)
            ids = own[0] if len(own) == 1 else np.concatenate(own)
            found[name] = sort_sources(ids, stored, self._hop_rows[name], self._placement)
        return found

    def _fold(
        self, index: int, hop: Hop, blocks: HopBlocks, destinations: Mapping[str, Ids]
    ) -> dict[Relation, Folding]:
        """By relation, what is left of its edges and what others add up; empty where nobody adds
        anything up, and all edges can be the layer's own."""
        fates = {each: blocks.fates(each) for each in hop.relations}
        if not any(own.any() for own in fates.values()):
            return {}
        drawn, folding = blocks.as_drawn(destinations), {}
        for each, own in fates.items():
            aggregation = self._stack.aggregation(index, each)
            assert isinstance(aggregation, SumLayer)
            # Weights are those of all edges, wherever these are added up.
            weights = aggregation.edge_weights(drawn[each], self._dtype).numpy()
            folding[each] = blocks.fold(each, own, weights)
        return folding

    def _requests(
        self, hop: Hop, blocks: HopBlocks, folding: Mapping[Relation, Folding]
    ) -> list[Request]:
        """By rank, what is wanted of it."""
        found = [Request() for _ in range(self._cluster.world)]
        for kind, wanted in blocks.wanted.items():
            for request, ids in zip(found, wanted.ids, strict=True):
                request.rows[kind] = ids.astype(np.int32)
        for name, folded in hop.folded.items():
            for rank in np.flatnonzero(folded).tolist():
                found[rank].sums[name] = int(hop.sums[name][rank])
                for each in hop.into(name):
                    found[rank].edges[each] = folding[each].asked_of(rank)
        return found

    def _answer(
        self,
        relations: Sequence[Relation],
        wires: Wires,
        asked: Sequence[Request],
        own: Mapping[str, OwnFrontier],
    ) -> dict[Kind, Outgoing]:
        """What goes out; sources that others found enter the own frontier."""
        rows, edges, added = {}, {}, {}
        for kind in wires.forms:
            if not isinstance(kind, Sums):
                ids = np.concatenate([request.rows[kind] for request in asked])
                rows[kind] = own[source_type(kind)].enter(ids.astype(np.int64))
        for each in relations:
            parts = [request.edges[each] for request in asked if each in request.edges]
            if sum(part.ids.size for part in parts):
                edges[each] = SumEdges.join(parts)
                added[each] = own[each.src].enter(edges[each].ids.astype(np.int64))
        outgoing: dict[Kind, Outgoing] = {}
        for kind in wires.forms:
            if isinstance(kind, Sums):
                sums = {
                    each: edges[each].block(each, added[each], own[each.src].size)
                    for each in edges
                    if each.dst == kind.node_type
                }
                lengths = [request.sums[kind.node_type] for request in asked]
                outgoing[kind] = Outgoing(lengths, torch.empty(0, dtype=torch.int64), sums)
            else:
                lengths = [request.rows[kind].size for request in asked]
                outgoing[kind] = Outgoing(lengths, torch.from_numpy(rows[kind]), {})
        return outgoing
