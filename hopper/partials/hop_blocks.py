"""The edges of a hop as blocks over this rank's own rows and the rows that it receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler, dropout_key
from hopper.micrograph.subgraph import HopEdges, Subgraph
from hopper.partials.frontiers import Ids, OwnFrontier, Wanted
from hopper.partials.hop import Hop
from hopper.partials.sums import Folding
from hopper.partials.wire import RowKind

_NONE = np.empty(0, np.int64)


class HopBlocks:
    """Makes one rank's blocks of a hop.

    Parameters
    ----------
    wanted: by kind, the rows that this rank receives.
    number: the number of the hop.
    moment: epoch and iteration.
    """

    def __init__(
        self,
        hop: Hop,
        wanted: Mapping[RowKind, Wanted],
        sampler: NeighborSampler,
        number: int,
        moment: tuple[int, int],
    ) -> None:
        self._hop, self._wanted = hop, wanted
        self._sampler = sampler
        self._key = dropout_key(sampler.dropout_seed, *moment)
        self._inclusion = sampler.inclusions_at(moment)[number]

    def make_unfolded(self, destinations: Mapping[str, Ids]) -> Mapping[Relation, Block]:
        """Return blocks of all edges, before any partial sums replace some of them.

        Their sources are the destinations, followed by all sources of the hop.

        Parameters
        ----------
        destinations: by type, [n] int64 versions.
        """
        hop, versions, edges = self._hop, dict(destinations), {}
        for name, sources in hop.sources.items():
            versions[name] = np.concatenate((destinations[name], sources.versions))
        for relation, (offsets, _, positions) in hop.drawn.items():
            places = hop.places(relation) + destinations[relation.src].size
            edges[relation] = HopEdges(offsets, places, positions)
        return self._make_blocks(versions, edges, is_folded=False).blocks

    def make(
        self, frontiers: Mapping[str, OwnFrontier], folding: Mapping[Relation, Folding]
    ) -> TypedBlocks:
        """Make the blocks of all relations, over own rows and received ones.

        Parameters
        ----------
        frontiers: by type, this rank's frontiers, which other ranks' requests have entered.
        folding: by relation of which other ranks add edges up.
        """
        hop, versions = self._hop, {name: frontier.versions for name, frontier in frontiers.items()}
        columns, versions_apart, edges = {}, {}, {}
        for name, sources in hop.sources.items():
            columns[name], part = np.empty(sources.versions.size, np.int64), sources.part(hop.rank)
            columns[name][part] = frontiers[name].rows(sources.versions[part])
            # Projected rows belong to one relation. They follow those of the type if this is its
            # only relation; otherwise each relation gets a list of sources of its own.
            kinds: list[RowKind] = [name]
            kinds += hop.readers(name) if hop.reads_once(name) else []
            versions[name] = self._append(kinds, columns[name], versions[name])
        for relation, (offsets, _, positions) in hop.drawn.items():
            name = relation.src
            table, size = columns[name], versions[name].size
            if relation in self._wanted and not hop.reads_once(name):
                table = table.copy()
                versions_apart[relation] = self._append([relation], table, versions[name])
                size = versions_apart[relation].size
            if relation not in folding:
                edges[relation] = HopEdges(offsets, table[hop.places(relation)], positions)
                continue
            left, inline = folding[relation].left, folding[relation].inline
            table = np.concatenate((table, np.arange(size, size + inline))) if inline else table
            edges[relation] = HopEdges(left.indptr, table[left.columns], _NONE)
        typed = self._make_blocks(versions, edges, is_folded=bool(folding))
        blocks = dict(typed.blocks)
        for relation, source_versions in versions_apart.items():
            blocks[relation] = self._make_blocks(
                {**versions, relation.src: source_versions},
                {relation: edges[relation]},
                is_folded=bool(folding),
            ).blocks[relation]
        for relation, relation_folding in folding.items():
            blocks[relation].num_src += relation_folding.inline
            blocks[relation].drawn = torch.from_numpy(np.diff(hop.drawn[relation][0]))
        return replace(typed, blocks=blocks)

    def nodes_of(self, node_type: str) -> Nodes:
        """Return the nodes of a type whose rows this rank receives."""
        nodes = self._sampler.nodes_of(node_type, self._wanted[node_type].all_versions())
        original = self._sampler.original_ids[node_type][nodes]
        stored = self._sampler.stored_as.get(node_type, node_type)
        return Nodes(stored, torch.from_numpy(original), None, self._key)

    def _append(self, kinds: Sequence[RowKind], table: Ids, versions: Ids) -> Ids:
        """Append the versions whose rows arrive as some kinds.

        Parameters
        ----------
        table: [sources], where the columns of the appended versions are written.
        versions: [n] int64, what to append to.

        Returns
        -------
        [m] int64: all versions.
        """
        for kind in kinds:
            if kind in self._wanted:
                self._wanted[kind].number(table, versions.size)
                versions = np.concatenate((versions, self._wanted[kind].all_versions()))
        return versions

    def _make_blocks(
        self, versions: Mapping[str, Ids], edges: Mapping[Relation, HopEdges], *, is_folded: bool
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
            drawn_as=sampler.drawn_as,
            stored_as=sampler.stored_as,
            times=times,
        )
        (blocks,) = subgraph.typed_blocks()
        return blocks
