"""Who computes what: one computation graph for the whole global batch, each node at its owner.

Every rank expands the frontier of its own nodes and tells the owners of the sources that it found
which rows it needs, hop by hop. Draws do not depend on placement (docs/draws.md), so the ranks'
parts make up the subgraph that one process would have sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.array_exchange import exchange_arrays
from hopper.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler
from hopper.models.layer import SumLayer
from hopper.partials.frontiers import Ids, OwnFrontier, Sources, Wanted, sort_sources
from hopper.partials.hop import Hop
from hopper.partials.hop_blocks import HopBlocks
from hopper.partials.plan import IterationPlan, LayerEdges, LayerPlan, Outgoing, Split
from hopper.partials.splits import make_awaited_first
from hopper.partials.stack import Stack
from hopper.partials.sums import AskedSums, Folding, Words, fold_relation
from hopper.partials.wire import Kind, RowKind, Sums, Wires, source_type
from hopper.partition.placement import Placement


class Planner:
    """Plans the iterations of one rank, together with the others.

    Parameters
    ----------
    cluster: what plans are told over.
    wires: how the rows of each layer may travel.
    edges: the relations whose edges' features are read, as they are stored.

    Attributes
    ----------
    sampler: that draws.
    kept: by hop and type, [nodes], those of other ranks that this one computes itself; empty where
        there are none.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        placement: Placement,
        cluster: Cluster,
        stack: Stack,
        wires: Sequence[Wires],
        edges: Collection[Relation] = (),
    ) -> None:
        self._edges = edges
        self.sampler = sampler
        self._placement = placement
        self._cluster = cluster
        self._stack = stack
        self._wires = wires
        self.kept: Sequence[Mapping[str, NDArray[np.bool_]]] = ()
        self._dtype = next(stack.model.parameters()).dtype
        self._number = np.dtype(str(self._dtype).removeprefix("torch."))
        self._own_rows, self._hop_rows = (
            {each: sampler.row_table(each) for each in sorted(sampler.original_ids)}
            for _ in range(2)
        )

    def plan(self, roots: Mapping[str, Ids], epoch: int, iteration: int) -> IterationPlan:
        """This rank's part of an iteration; every rank has to call it.

        Parameters
        ----------
        roots: by type, [n] int64 versions, those of nodes that this rank owns; may be empty.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        """
        own = {each: OwnFrontier(table) for each, table in self._own_rows.items()}
        try:
            for each, versions in roots.items():
                own[each].enter(np.ascontiguousarray(versions, np.int64))
            layers: list[LayerPlan] = []
            for hop in range(len(self._wires)):
                layers.insert(0, self._plan_hop(hop, own, (epoch, iteration)))
            found = {each: frontier.versions for each, frontier in own.items()}
            nodes, _ = self.sampler.nodes_and_times(found)
            return IterationPlan(nodes, sum(int(each.size) for each in roots.values()), layers)
        finally:
            for each, frontier in own.items():
                self._own_rows[each].clear(frontier.versions)

    def _plan_hop(
        self, number: int, own: Mapping[str, OwnFrontier], moment: tuple[int, int]
    ) -> LayerPlan:
        index = len(self._wires) - 1 - number
        relations, wires = list(self._stack.layers[index].aggregations), self._wires[index]
        destinations = {each: frontier.versions for each, frontier in own.items()}
        drawn = {
            each: self.sampler.draw(number, each, destinations[each.dst], moment)
            for each in relations
        }
        found = self._sort_sources(number, drawn)
        for each, sources in found.items():
            own[each].enter(sources.versions[sources.part(self._cluster.rank)])
        cluster, sizes = self._cluster, {each: own.size for each, own in destinations.items()}
        dtype = self.sampler.version_dtype
        hop = Hop(relations, sizes, drawn, found, wires, cluster.rank, cluster.world, dtype)
        kinds = [each for each in wires.forms if not isinstance(each, Sums)]
        wanted = {kind: hop.wanted(kind) for kind in kinds}
        blocks = HopBlocks(hop, wanted, self.sampler, number, moment)
        weights = self._weights(index, hop, blocks, destinations)
        folding = {each: fold_relation(hop, each, own) for each, own in weights.items()}
        where = f"epoch {moment[0]}, iteration {moment[1]}, hop {number}"
        asked = exchange_arrays(
            cluster,
            self._requests(wires, hop, wanted, folding),
            "topology",
            f"telling which rows are needed, {where}",
        )
        outgoing, splits = self._answer(wires, relations, iter(asked), own)
        typed = blocks.make(own, folding)
        counts: dict[Kind, list[int]] = {kind: each.counts for kind, each in wanted.items()}
        ends = {}
        for name, own_folded in hop.folded.items():
            counts[Sums(name)] = (hop.sums[name] * own_folded).tolist()
            if wires.merged and folding:
                ends[name] = torch.from_numpy(hop.ends_of_sums(name))
        return LayerPlan(
            {each: self._stack.nodes(typed, each, own[each].size) for each in own},
            typed,
            {each: blocks.nodes_of(each) for each in sorted(wires.raw)},
            {each: torch.from_numpy(part.left.weights) for each, part in folding.items()} or None,
            ends,
            outgoing,
            counts,
            splits,
            self._drawn_edges(drawn, destinations, weights),
        )

    def _drawn_edges(
        self,
        drawn: Mapping[Relation, tuple[Ids, Ids, Ids]],
        destinations: Mapping[str, Ids],
        weights: Mapping[Relation, NDArray[Any]],
    ) -> dict[Relation, LayerEdges]:
        """By relation whose edges' features are read, the edges that this rank has drawn."""
        found = {}
        for each, (offsets, _, positions) in drawn.items():
            stored = self.sampler.drawn_as.get(each, each)
            if stored in self._edges:
                topology = self.sampler.topologies[each]
                nodes = self.sampler.nodes_of(each.dst, destinations[each.dst])
                places = topology.edge_indices(nodes, offsets, positions)
                found[each] = LayerEdges(stored, places, offsets, weights.get(each))
        return found

    def _sort_sources(
        self, number: int, drawn: Mapping[Relation, tuple[Ids, Ids, Ids]]
    ) -> dict[str, Sources]:
        """By type, the distinct sources of all relations from it, by owner."""
        kept = self.kept[number] if self.kept else {}
        parts: dict[str, list[Ids]] = {}
        for each, (_, sources, _) in drawn.items():
            parts.setdefault(each.src, []).append(sources)
        found = {}
        for name, found_by in parts.items():
            sources = found_by[0] if len(found_by) == 1 else np.concatenate(found_by)
            owners_of = partial(self._owners_of, name, kept.get(name))
            found[name] = sort_sources(
                sources, self._hop_rows[name], self._cluster.world, owners_of
            )
        return found

    def _owners_of(
        self, name: str, kept: NDArray[np.bool_] | None, versions: Ids
    ) -> NDArray[np.int16]:
        """[n]: the ranks that own versions of a type's nodes.

        Parameters
        ----------
        kept: [nodes of the type], those that count as this rank's own.
        """
        nodes = self.sampler.nodes_of(name, versions)
        stored = self.sampler.stored_as.get(name, name)
        owners = self._placement.rank_of(stored, nodes).astype(np.int16)
        if kept is not None:
            owners[kept[nodes]] = self._cluster.rank
        return owners

    def _weights(
        self, index: int, hop: Hop, blocks: HopBlocks, destinations: Mapping[str, Ids]
    ) -> dict[Relation, NDArray[Any]]:
        """By relation, [edges]: the weights of messages, where others add some of them up; empty
        where nobody adds anything up, and all edges can be the layer's own."""
        if not any(own.any() for own in hop.folded.values()):
            return {}
        drawn, weights = blocks.as_drawn(destinations), {}
        for each, aggregation in self._stack.layers[index].aggregations.items():
            assert isinstance(aggregation, SumLayer)
            # Weights are those of all edges, wherever these are added up.
            weights[each] = aggregation.edge_weights(drawn[each], self._dtype).numpy()
        return weights

    def _requests(
        self,
        wires: Wires,
        hop: Hop,
        wanted: Mapping[RowKind, Wanted],
        folding: Mapping[Relation, Folding],
    ) -> list[list[Words]]:
        """What every rank is told: of every kind of rows the versions, then of every relation that
        may be added up :meth:`Folding.told`; each by rank."""
        ranks, none = range(self._cluster.world), np.empty(0, np.int32)
        found = [list(map(hop.as_words, own.versions)) for own in wanted.values()]
        for each in _added_up(wires, hop.relations):
            told = [folding[each].told(rank) if folding else (none, none) for rank in ranks]
            found += map(list, zip(*told, strict=True))
        return found

    def _answer(
        self,
        wires: Wires,
        relations: Sequence[Relation],
        asked: Iterator[Sequence[Words]],
        own: Mapping[str, OwnFrontier],
    ) -> tuple[dict[Kind, Outgoing], dict[str, Split]]:
        """What goes out, and which own rows are made first for it; sources that others found enter
        the own frontier.

        Parameters
        ----------
        asked: what every rank has told, as of :meth:`_requests`.
        """
        rows: dict[RowKind, Ids] = {}
        lengths: dict[RowKind, list[int]] = {}
        for kind in wires.forms:
            if not isinstance(kind, Sums):
                dtype = self.sampler.version_dtype
                parts = [each.view(dtype) for each in next(asked)]
                versions = np.concatenate(parts).astype(np.int64)
                rows[kind] = own[source_type(kind)].enter(versions)
                lengths[kind] = [part.size for part in parts]
        told = {
            each: list(zip(next(asked), next(asked), strict=True))
            for each in _added_up(wires, relations)
        }
        sums: dict[Sums, AskedSums] = {}
        added: dict[Relation, Ids] = {}
        for kind in wires.forms:
            if isinstance(kind, Sums):
                into = {each: parts for each, parts in told.items() if each.dst == kind.node_type}
                sums[kind] = AskedSums.read(into, self._number, self.sampler.version_dtype)
                for each, versions in sums[kind].sources.items():
                    added[each] = own[each.src].enter(versions.astype(np.int64))
        # Only now are all own rows known.
        sizes = {name: frontier.size for name, frontier in own.items()}
        made = make_awaited_first(wires, sizes, rows, added)
        outgoing: dict[Kind, Outgoing] = {
            kind: Outgoing(lengths[kind], torch.from_numpy(each), {})
            for kind, each in made.rows.items()
        }
        for sums_kind, asked_sums in sums.items():
            patterns = {
                each: asked_sums.block(each, made.added[each], made.sizes[each.src])
                for each in asked_sums.sources
            }
            outgoing[sums_kind] = Outgoing(asked_sums.lengths, torch.empty(0), patterns)
        return outgoing, made.splits


def _added_up(wires: Wires, relations: Sequence[Relation]) -> list[Relation]:
    """The relations that others may be asked to add up."""
    return [each for each in relations if Sums(each.dst) in wires.forms]
