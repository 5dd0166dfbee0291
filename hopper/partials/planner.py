"""Plans of one computation graph for the whole global batch, with each node at its owner.

Hop by hop, every rank expands the frontier of its own nodes and tells the owners of the sources
which rows it needs. Draws do not depend on placement (docs/inside/draws.md), so the ranks' parts
together are the subgraph that one process would have sampled.
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
    """Plans one rank's part of each iteration, together with the planners of all other ranks.

    Parameters
    ----------
    cluster: carries the requests between planners.
    wires: by layer, how its rows may travel.
    edges: the relations whose edge features are read, under the names of the stored graph.

    Attributes
    ----------
    sampler: draws the neighbours.
    kept: by hop and type, [nodes], the nodes of other ranks that this rank computes itself; empty
        if there are none.
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
            {name: sampler.row_table(name) for name in sorted(sampler.original_ids)}
            for _ in range(2)
        )

    def plan(self, roots: Mapping[str, Ids], epoch: int, iteration: int) -> IterationPlan:
        """Plan this rank's part of an iteration; every rank must call it.

        Parameters
        ----------
        roots: by type, [n] int64 versions of nodes that this rank owns; may be empty.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        """
        frontiers = {name: OwnFrontier(table) for name, table in self._own_rows.items()}
        try:
            for name, versions in roots.items():
                frontiers[name].enter(np.ascontiguousarray(versions, np.int64))
            layers: list[LayerPlan] = []
            for hop in range(len(self._wires)):
                layers.insert(0, self._plan_hop(hop, frontiers, (epoch, iteration)))
            all_versions = {name: frontier.versions for name, frontier in frontiers.items()}
            nodes, _ = self.sampler.nodes_and_times(all_versions)
            root_count = sum(int(versions.size) for versions in roots.values())
            return IterationPlan(nodes, root_count, layers)
        finally:
            for name, frontier in frontiers.items():
                self._own_rows[name].clear(frontier.versions)

    def _plan_hop(
        self, number: int, frontiers: Mapping[str, OwnFrontier], moment: tuple[int, int]
    ) -> LayerPlan:
        index = len(self._wires) - 1 - number
        wires = self._wires[index]
        destinations = {name: frontier.versions for name, frontier in frontiers.items()}
        hop = self._draw_hop(number, index, destinations, frontiers, moment)
        wanted = {kind: hop.wanted(kind) for kind in wires.forms if not isinstance(kind, Sums)}
        blocks = HopBlocks(hop, wanted, self.sampler, number, moment)
        weights = self._edge_weights(index, hop, blocks, destinations)
        folding = {
            relation: fold_relation(hop, relation, edge_weights)
            for relation, edge_weights in weights.items()
        }
        where = f"epoch {moment[0]}, iteration {moment[1]}, hop {number}"
        requests = exchange_arrays(
            self._cluster,
            self._make_requests(wires, hop, wanted, folding),
            "topology",
            f"telling which rows are needed, {where}",
        )
        outgoing, splits = self._read_requests(wires, hop.relations, iter(requests), frontiers)
        typed = blocks.make(frontiers, folding)
        counts: dict[Kind, list[int]] = {kind: rows.counts for kind, rows in wanted.items()}
        ends = {}
        for name, ranks in hop.folded.items():
            counts[Sums(name)] = (hop.sums[name] * ranks).tolist()
            if wires.merged and folding:
                ends[name] = torch.from_numpy(hop.ends_of_sums(name))
        weights_left = {
            relation: torch.from_numpy(folded.left.weights) for relation, folded in folding.items()
        }
        return LayerPlan(
            {name: self._stack.nodes(typed, name, frontiers[name].size) for name in frontiers},
            typed,
            {name: blocks.nodes_of(name) for name in sorted(wires.raw)},
            weights_left or None,
            ends,
            outgoing,
            counts,
            splits,
            self._find_feature_edges(hop.drawn, destinations, weights),
        )

    def _draw_hop(
        self,
        number: int,
        index: int,
        destinations: Mapping[str, Ids],
        frontiers: Mapping[str, OwnFrontier],
        moment: tuple[int, int],
    ) -> Hop:
        """Draw the hop that a layer reads. The sources that this rank owns enter the frontiers.

        Parameters
        ----------
        index: the index of the layer, in order of computation.
        destinations: by type, [n] int64, the versions of the hop's destinations.
        """
        relations = list(self._stack.layers[index].aggregations)
        drawn = {
            relation: self.sampler.draw(number, relation, destinations[relation.dst], moment)
            for relation in relations
        }
        sources = self._sort_sources(number, drawn)
        cluster = self._cluster
        for name, sources_of_type in sources.items():
            frontiers[name].enter(sources_of_type.versions[sources_of_type.part(cluster.rank)])
        return Hop(
            relations,
            {name: versions.size for name, versions in destinations.items()},
            drawn,
            sources,
            self._wires[index],
            cluster.rank,
            cluster.world,
            self.sampler.version_dtype,
        )

    def _find_feature_edges(
        self,
        drawn: Mapping[Relation, tuple[Ids, Ids, Ids]],
        destinations: Mapping[str, Ids],
        weights: Mapping[Relation, NDArray[Any]],
    ) -> dict[Relation, LayerEdges]:
        """Return the edges that this rank has drawn, by relation whose edge features are read."""
        edges = {}
        for relation, (offsets, _, positions) in drawn.items():
            stored = self.sampler.drawn_as.get(relation, relation)
            if stored in self._edges:
                topology = self.sampler.topologies[relation]
                nodes = self.sampler.nodes_of(relation.dst, destinations[relation.dst])
                places = topology.edge_indices(nodes, offsets, positions)
                edges[relation] = LayerEdges(stored, places, offsets, weights.get(relation))
        return edges

    def _sort_sources(
        self, number: int, drawn: Mapping[Relation, tuple[Ids, Ids, Ids]]
    ) -> dict[str, Sources]:
        """Return the distinct sources of all relations from each type, ordered by owner."""
        kept = self.kept[number] if self.kept else {}
        parts: dict[str, list[Ids]] = {}
        for relation, (_, versions, _) in drawn.items():
            parts.setdefault(relation.src, []).append(versions)
        sources = {}
        for name, by_relation in parts.items():
            versions = by_relation[0] if len(by_relation) == 1 else np.concatenate(by_relation)
            owners_of = partial(self._find_owners, name, kept.get(name))
            sources[name] = sort_sources(
                versions, self._hop_rows[name], self._cluster.world, owners_of
            )
        return sources

    def _find_owners(
        self, name: str, kept: NDArray[np.bool_] | None, versions: Ids
    ) -> NDArray[np.int16]:
        """Return [n]: the ranks that own versions of a type's nodes.

        Parameters
        ----------
        kept: [nodes of the type], the nodes that count as this rank's own.
        """
        nodes = self.sampler.nodes_of(name, versions)
        stored = self.sampler.stored_as.get(name, name)
        owners = self._placement.rank_of(stored, nodes).astype(np.int16)
        if kept is not None:
            owners[kept[nodes]] = self._cluster.rank
        return owners

    def _edge_weights(
        self, index: int, hop: Hop, blocks: HopBlocks, destinations: Mapping[str, Ids]
    ) -> dict[Relation, NDArray[Any]]:
        """Return the weights of messages by relation, [edges].

        Empty if no other rank adds messages up: the layer then computes the weights itself.
        """
        if not any(ranks.any() for ranks in hop.folded.values()):
            return {}
        # A weight may depend on all edges of a destination, wherever they are added up.
        unfolded, weights = blocks.make_unfolded(destinations), {}
        for relation, aggregation in self._stack.layers[index].aggregations.items():
            assert isinstance(aggregation, SumLayer)
            weights[relation] = aggregation.edge_weights(unfolded[relation], self._dtype).numpy()
        return weights

    def _make_requests(
        self,
        wires: Wires,
        hop: Hop,
        wanted: Mapping[RowKind, Wanted],
        folding: Mapping[Relation, Folding],
    ) -> list[list[Words]]:
        """Encode what this rank asks of every rank.

        Returns
        -------
        By rank within each entry: for every kind of rows its versions, then for every relation that
        may be added up the two arrays of :meth:`Folding.encode_for`.
        """
        ranks, none = range(self._cluster.world), np.empty(0, np.int32)
        requests = [list(map(hop.encode_versions, rows.versions)) for rows in wanted.values()]
        for relation in _summable_relations(wires, hop.relations):
            sums = [
                folding[relation].encode_for(rank) if folding else (none, none) for rank in ranks
            ]
            requests += map(list, zip(*sums, strict=True))
        return requests

    def _read_requests(
        self,
        wires: Wires,
        relations: Sequence[Relation],
        requests: Iterator[Sequence[Words]],
        frontiers: Mapping[str, OwnFrontier],
    ) -> tuple[dict[Kind, Outgoing], dict[str, Split]]:
        """Decide what to send to other ranks, and which own rows to make first for it.

        The rows that others ask for enter the own frontiers.

        Parameters
        ----------
        requests: the requests of every rank, as :meth:`_make_requests` encodes them.
        """
        rows: dict[RowKind, Ids] = {}
        lengths: dict[RowKind, list[int]] = {}
        for kind in wires.forms:
            if not isinstance(kind, Sums):
                dtype = self.sampler.version_dtype
                parts = [words.view(dtype) for words in next(requests)]
                versions = np.concatenate(parts).astype(np.int64)
                rows[kind] = frontiers[source_type(kind)].enter(versions)
                lengths[kind] = [part.size for part in parts]
        sum_requests = {
            relation: list(zip(next(requests), next(requests), strict=True))
            for relation in _summable_relations(wires, relations)
        }
        sums: dict[Sums, AskedSums] = {}
        added: dict[Relation, Ids] = {}
        for kind in wires.forms:
            if isinstance(kind, Sums):
                into = {
                    relation: parts
                    for relation, parts in sum_requests.items()
                    if relation.dst == kind.node_type
                }
                sums[kind] = AskedSums.read(into, self._number, self.sampler.version_dtype)
                for relation, versions in sums[kind].sources.items():
                    added[relation] = frontiers[relation.src].enter(versions.astype(np.int64))
        # Only now are all own rows known.
        sizes = {name: frontier.size for name, frontier in frontiers.items()}
        awaited_first = make_awaited_first(wires, sizes, rows, added)
        outgoing: dict[Kind, Outgoing] = {
            kind: Outgoing(lengths[kind], torch.from_numpy(rows_to_send), {})
            for kind, rows_to_send in awaited_first.rows.items()
        }
        for sums_kind, asked_sums in sums.items():
            patterns = {
                relation: asked_sums.pattern(
                    relation, awaited_first.added[relation], awaited_first.sizes[relation.src]
                )
                for relation in asked_sums.sources
            }
            outgoing[sums_kind] = Outgoing(asked_sums.lengths, torch.empty(0), patterns)
        return outgoing, awaited_first.splits


def _summable_relations(wires: Wires, relations: Sequence[Relation]) -> list[Relation]:
    """Return the relations that other ranks may be asked to add up."""
    return [relation for relation in relations if Sums(relation.dst) in wires.forms]
