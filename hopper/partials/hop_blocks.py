"""The edges of a hop as blocks over this rank's own rows and the rows that it receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.frontiers import Frontier
from hopper.micrograph.sample import NeighborSampler, dropout_key
from hopper.micrograph.subgraph import HopEdges, Subgraph
from hopper.partials.requests import Folded, HopRequests, Wanted
from hopper.partials.transfer import RowKind


class HopBlocks:
    """Makes one rank's blocks of a hop, whose number is given, at an epoch and iteration."""

    def __init__(
        self,
        hop: HopRequests,
        wanted: Mapping[RowKind, Wanted],
        sampler: NeighborSampler,
        number: int,
        moment: tuple[int, int],
    ) -> None:
        self._hop, self._wanted, self._sampler = hop, wanted, sampler
        self._key = dropout_key(sampler.dropout_seed, *moment)
        self._inclusion = sampler.inclusions_at(moment)[number]

    def make_unfolded(self, destinations: Mapping[str, Ids]) -> TypedBlocks:
        """Return blocks of all edges, before any partial sums replace some of them.

        Their sources are the destinations, versions [n], followed by all sources of the hop.
        """
        hop, versions = self._hop, dict(destinations)
        for name, sources in hop.sources.items():
            versions[name] = np.concatenate((destinations[name], sources.versions))
        edges = {
            relation: drawn._replace(indices=hop.places(relation) + destinations[relation.src].size)
            for relation, drawn in hop.drawn.items()
        }
        return self._make_blocks(versions, edges, False)

    def make(
        self, frontiers: Mapping[str, Frontier], folded: Mapping[Relation, Folded]
    ) -> TypedBlocks:
        """Make the blocks of all relations, over own rows and received ones, when other ranks'
        requests have entered this rank's frontiers."""
        hop, versions = self._hop, {name: frontier.versions for name, frontier in frontiers.items()}
        columns = {}
        for name, of_type in hop.sources.items():
            columns[name], part = np.empty(of_type.versions.size, np.int64), of_type.part(hop.rank)
            columns[name][part] = frontiers[name].rows(of_type.versions[part])
            if name in self._wanted:
                versions[name] = self._append(name, columns[name], versions[name])
        together, blocks = dict[Relation, HopEdges](), dict[Relation, Block]()
        for relation, drawn in hop.drawn.items():
            table, sources = columns[relation.src], versions
            if relation in self._wanted:
                # Projected rows are sources of this relation alone.
                table = table.copy()
                appended = self._append(relation, table, versions[relation.src])
                sources = {**versions, relation.src: appended}
            if relation in folded:
                first, sums = sources[relation.src].size, folded[relation].sums
                table = np.concatenate((table, np.arange(first, first + sums)))
                left = folded[relation].left
                edges = left._replace(indices=table[left.indices])
            else:
                edges = drawn._replace(indices=table[hop.places(relation)])
            if sources is versions:
                together[relation] = edges
            else:
                blocks |= self._make_blocks(sources, {relation: edges}, bool(folded)).blocks
        typed = self._make_blocks(versions, together, bool(folded))
        blocks |= typed.blocks
        for relation, relation_folded in folded.items():
            blocks[relation].num_src += relation_folded.sums
            blocks[relation].drawn = torch.from_numpy(np.diff(hop.drawn[relation].indptr))
        return replace(typed, blocks={relation: blocks[relation] for relation in hop.drawn})

    def nodes_of(self, node_type: str) -> Nodes:
        """Return the nodes of a type whose rows this rank receives."""
        nodes = self._sampler.nodes_of(node_type, self._wanted[node_type].versions)
        original = self._sampler.original_ids[node_type][nodes]
        stored = self._sampler.names.node_type(node_type)
        return Nodes(stored, torch.from_numpy(original), None, self._key)

    def _append(self, kind: RowKind, columns: Ids, versions: Ids) -> Ids:
        """Append the versions whose rows arrive as a kind, and write their columns, [sources]."""
        wanted = self._wanted[kind]
        columns[wanted.places] = np.arange(versions.size, versions.size + wanted.places.size)
        return np.concatenate((versions, wanted.versions))

    def _make_blocks(
        self, versions: Mapping[str, Ids], edges: Mapping[Relation, HopEdges], is_folded: bool
    ) -> TypedBlocks:
        sampler = self._sampler
        nodes, times = sampler.nodes_and_times(versions)
        subgraph = Subgraph(
            target=sampler.target,
            nodes=nodes,
            sizes=[dict(self._hop.destinations), {name: ids.size for name, ids in nodes.items()}],
            hops=[dict(edges)],
            topologies=sampler.topologies,
            original_ids=sampler.original_ids,
            iteration_key=self._key,
            # The weights of edges that remain after folding include the inverse probability.
            inclusions=[None if is_folded else self._inclusion],
            names=sampler.names,
            times=times,
        )
        (blocks,) = subgraph.typed_blocks()
        return blocks
