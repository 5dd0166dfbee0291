"""Plans of one computation graph for the whole global batch, with each node at its owner.

Hop by hop, every rank expands the frontier of its own nodes and tells the owners of the sources
which rows it needs. Draws do not depend on placement (docs/inside/draws.md), so the ranks' parts
together are the subgraph that one process would have sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster.array_exchange import exchange_arrays
from hopper.cluster.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.frontiers import Frontier, FrontierPool
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import HopEdges
from hopper.models.layer import SumLayer
from hopper.partials.hop_blocks import HopBlocks
from hopper.partials.plan import IterationPlan, LayerEdges, LayerPlan, Outgoing
from hopper.partials.requests import AskedSums, HopRequests, Sources, Words, sort_sources
from hopper.partials.stack import Stack
from hopper.partials.transfer import Kind, LayerTransfer, Sums, source_type
from hopper.partition.placement import Placement

_NOTHING: Final = np.empty(0, np.int32)


class Planner:
    """Plans one rank's part of each iteration, together with the planners of all other ranks.

    ``cluster`` carries the requests between planners, ``transfers`` say by layer how rows may
    travel, and ``edges`` are the stored relations whose edge features are read.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        placement: Placement,
        cluster: Cluster,
        stack: Stack,
        transfers: Sequence[LayerTransfer],
        edges: Collection[Relation] = (),
    ) -> None:
        self._edges = edges
        self.sampler = sampler
        self._placement = placement
        self._cluster = cluster
        self._stack = stack
        self._transfers = transfers
        self.kept: Sequence[Mapping[str, NDArray[np.bool_]]] = ()
        """by hop and type, [nodes], which nodes of other ranks this rank computes itself"""
        self._dtype = next(stack.model.parameters()).dtype
        self._number = np.dtype(str(self._dtype).removeprefix("torch."))
        self._pool = FrontierPool()
        self._hop_rows = {name: sampler.row_table(name) for name in sorted(sampler.original_ids)}

    def plan(self, roots: Mapping[str, Ids], epoch: int, iteration: int) -> IterationPlan:
        """Plan this rank's part of an iteration; every rank must call it.

        ``roots`` are by type, [n] int64, versions of nodes that this rank owns. It raises
        DeadlineExceeded or RankLost, which name this rank, the operation and the limit.
        """
        types = sorted(self.sampler.original_ids)
        with self._pool.begin(types, self.sampler.row_table) as frontiers:
            for name, versions in roots.items():
                frontiers[name].enter(np.ascontiguousarray(versions, np.int64))
            layers: list[LayerPlan] = []
            for hop in range(len(self._transfers)):
                layers.insert(0, self._plan_hop(hop, frontiers, (epoch, iteration)))
            all_versions = {name: frontier.versions for name, frontier in frontiers.items()}
            nodes, _ = self.sampler.nodes_and_times(all_versions)
            root_count = sum(int(versions.size) for versions in roots.values())
            return IterationPlan(nodes, root_count, layers)

    def _plan_hop(
        self, number: int, frontiers: Mapping[str, Frontier], moment: tuple[int, int]
    ) -> LayerPlan:
        index = len(self._transfers) - 1 - number
        destinations = {name: frontier.versions for name, frontier in frontiers.items()}
        hop = self._draw_hop(number, index, destinations, frontiers, moment)
        kinds = [kind for kind in hop.transfer.layouts if not isinstance(kind, Sums)]
        wanted = {kind: hop.wanted(kind) for kind in kinds}
        blocks = HopBlocks(hop, wanted, self.sampler, number, moment)
        weights = self._edge_weights(index, hop, blocks, destinations)
        folded = {relation: hop.fold(relation, of_edges) for relation, of_edges in weights.items()}
        nothing = [_NOTHING] * self._cluster.world
        requests = exchange_arrays(
            self._cluster,
            # By rank: for every kind of rows the versions that this rank asks for, then for every
            # relation that may be added up the edges to add up.
            [hop.encode_versions(rows) for rows in wanted.values()]
            + [folded[r].requests if folded else nothing for r in hop.summable()],
            "topology",
            f"telling which rows are needed, epoch {moment[0]}, iteration {moment[1]}, "
            f"hop {number}",
        )
        outgoing = self._read_requests(hop, iter(requests), frontiers)
        typed = blocks.make(frontiers, folded)
        counts: dict[Kind, list[int]] = {
            kind: np.diff(rows.bounds).tolist() for kind, rows in wanted.items()
        }
        counts |= {Sums(name): hop.count_sums(name).tolist() for name in hop.folded}
        ends = hop.folded if hop.transfer.merged and folded else ()
        left = {name: torch.from_numpy(edges.weights) for name, edges in folded.items()}
        return LayerPlan(
            {name: self._stack.nodes(typed, name, frontiers[name].size) for name in frontiers},
            typed,
            {name: blocks.nodes_of(name) for name in sorted(hop.transfer.raw)},
            left or None,
            {name: torch.from_numpy(hop.ends_of_sums(name)) for name in ends},
            outgoing,
            counts,
            self._find_feature_edges(hop.drawn, destinations, weights),
        )

    def _draw_hop(
        self,
        number: int,
        index: int,
        destinations: Mapping[str, Ids],
        frontiers: Mapping[str, Frontier],
        moment: tuple[int, int],
    ) -> HopRequests:
        """Draw the hop that layer ``index`` reads, for the versions [n] of its destinations. The
        sources that this rank owns enter the frontiers."""
        drawn = {
            relation: HopEdges(
                *self.sampler.draw(number, relation, destinations[relation.dst], moment)
            )
            for relation in self._stack.layers[index].aggregations
        }
        sources, cluster = self._sort_sources(number, drawn), self._cluster
        for name, of_type in sources.items():
            frontiers[name].enter(of_type.versions[of_type.part(cluster.rank)])
        sizes = {name: versions.size for name, versions in destinations.items()}
        return HopRequests(
            drawn,
            sizes,
            sources,
            self._transfers[index],
            cluster.rank,
            cluster.world,
            self.sampler.version_dtype,
        )

    def _find_feature_edges(
        self,
        drawn: Mapping[Relation, HopEdges],
        destinations: Mapping[str, Ids],
        weights: Mapping[Relation, NDArray[Any]],
    ) -> dict[Relation, LayerEdges]:
        """Return the edges that this rank has drawn, by relation whose edge features are read."""
        edges = {}
        for relation, (offsets, _, positions) in drawn.items():
            stored = self.sampler.names.relation(relation)
            if stored in self._edges:
                topology = self.sampler.topologies[relation]
                nodes = self.sampler.nodes_of(relation.dst, destinations[relation.dst])
                places = topology.edge_indices(nodes, offsets, positions)
                edges[relation] = LayerEdges(stored, places, offsets, weights.get(relation))
        return edges

    def _sort_sources(self, number: int, drawn: Mapping[Relation, HopEdges]) -> dict[str, Sources]:
        """Return the distinct sources of all relations from each type, ordered by owner."""
        kept = self.kept[number] if self.kept else {}
        parts: dict[str, list[Ids]] = {}
        for relation, edges in drawn.items():
            parts.setdefault(relation.src, []).append(edges.indices)
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
        """Return [n]: the ranks that own versions of a type's nodes. This rank owns those ``kept``,
        [nodes of the type], too."""
        nodes = self.sampler.nodes_of(name, versions)
        stored = self.sampler.names.node_type(name)
        owners = self._placement.rank_of(stored, nodes).astype(np.int16)
        if kept is not None:
            owners[kept[nodes]] = self._cluster.rank
        return owners

    def _edge_weights(
        self, index: int, hop: HopRequests, blocks: HopBlocks, destinations: Mapping[str, Ids]
    ) -> dict[Relation, NDArray[Any]]:
        """Return the weights of messages by relation, [edges], if any other rank adds them up; else
        the layer computes the weights itself."""
        if not any(ranks.any() for ranks in hop.folded.values()):
            return {}
        # A weight may depend on all edges of a destination, wherever they are added up.
        unfolded, weights = blocks.make_unfolded(destinations).blocks, {}
        for relation, aggregation in self._stack.layers[index].aggregations.items():
            assert isinstance(aggregation, SumLayer)
            weights[relation] = aggregation.edge_weights(unfolded[relation], self._dtype).numpy()
        return weights

    def _read_requests(
        self,
        hop: HopRequests,
        requests: Iterator[Sequence[Words]],
        frontiers: Mapping[str, Frontier],
    ) -> dict[Kind, Outgoing]:
        """Decide what to send to other ranks. The rows that they ask for enter the own
        frontiers."""
        outgoing: dict[Kind, Outgoing] = {}
        version, sums = self.sampler.version_dtype, list[str]()
        for kind in hop.transfer.layouts:
            if isinstance(kind, Sums):
                sums.append(kind.node_type)
                continue
            parts = [words.view(version) for words in next(requests)]
            rows = frontiers[source_type(kind)].enter(np.concatenate(parts).astype(np.int64))
            outgoing[kind] = Outgoing([part.size for part in parts], torch.from_numpy(rows), {})
        by_relation = {relation: next(requests) for relation in hop.summable()}
        asked = {
            name: AskedSums.read({r: by_relation[r] for r in hop.into(name)}, self._number, version)
            for name in sums
        }
        rows_of = {
            relation: frontiers[relation.src].enter(versions)
            for of_type in asked.values()
            for relation, versions in of_type.sources.items()
        }
        # Only now are all own rows known.
        for name, of_type in asked.items():
            patterns = {
                relation: of_type.pattern(relation, rows_of[relation], frontiers[relation.src].size)
                for relation in of_type.sources
            }
            outgoing[Sums(name)] = Outgoing(of_type.lengths, torch.empty(0), patterns)
        return outgoing
