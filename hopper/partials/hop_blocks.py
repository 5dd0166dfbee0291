"""The edges of a hop as blocks: what stays of them, and where the rows that come stand."""

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
    """Makes the blocks of a hop, as one rank has them.

    Parameters
    ----------
    wanted: by kind, the rows that come.
    number: which hop it is. moment: epoch and iteration.
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

    def as_drawn(self, destinations: Mapping[str, Ids]) -> Mapping[Relation, Block]:
        """All edges, over the destinations and all sources behind them.

        Parameters
        ----------
        destinations: by type, [n] int64 versions.
        """
        hop, versions, edges = self._hop, dict(destinations), {}
        for name, found in hop.found.items():
            versions[name] = np.concatenate((destinations[name], found.versions))
        for each, (offsets, _, positions) in hop.drawn.items():
            places = hop.places(each) + destinations[each.src].size
            edges[each] = HopEdges(offsets, places, positions)
        return self._sampled(versions, edges, is_folded=False).blocks

    def make(
        self, own: Mapping[str, OwnFrontier], folding: Mapping[Relation, Folding]
    ) -> TypedBlocks:
        """The blocks of all relations, over own rows and those that come.

        Parameters
        ----------
        own: as it is when other ranks have told what they want.
        folding: by relation of which others add edges up.
        """
        hop, versions = self._hop, {name: frontier.versions for name, frontier in own.items()}
        tables, apart, edges = {}, {}, {}
        for name, found in hop.found.items():
            tables[name], part = np.empty(found.versions.size, np.int64), found.part(hop.rank)
            tables[name][part] = own[name].rows(found.versions[part])
            # Projected rows are a relation's own: behind those of the type, unless it has several.
            behind: list[RowKind] = [name]
            behind += hop.readers(name) if hop.reads_once(name) else []
            versions[name] = self._append(behind, tables[name], versions[name])
        for each, (offsets, _, positions) in hop.drawn.items():
            name, table, size = each.src, tables[each.src], versions[each.src].size
            if each in self._wanted and not hop.reads_once(name):
                table = table.copy()
                apart[each] = self._append([each], table, versions[name])
                size = apart[each].size
            if each not in folding:
                edges[each] = HopEdges(offsets, table[hop.places(each)], positions)
                continue
            left, inline = folding[each].left, folding[each].inline
            table = np.concatenate((table, np.arange(size, size + inline))) if inline else table
            edges[each] = HopEdges(left.indptr, table[left.columns], _NONE)
        typed = self._sampled(versions, edges, is_folded=bool(folding))
        blocks = dict(typed.blocks)
        for each, around in apart.items():
            alone = {**versions, each.src: around}, {each: edges[each]}
            blocks[each] = self._sampled(*alone, is_folded=bool(folding)).blocks[each]
        for each, own_folding in folding.items():
            blocks[each].num_src += own_folding.inline
            blocks[each].drawn = torch.from_numpy(np.diff(hop.drawn[each][0]))
        return replace(typed, blocks=blocks)

    def nodes_of(self, node_type: str) -> Nodes:
        """The nodes of a type whose rows come."""
        nodes = self._sampler.nodes_of(node_type, self._wanted[node_type].all_versions())
        original = self._sampler.original_ids[node_type][nodes]
        stored = self._sampler.stored_as.get(node_type, node_type)
        return Nodes(stored, torch.from_numpy(original), None, self._key)

    def _append(self, kinds: Sequence[RowKind], table: Ids, versions: Ids) -> Ids:
        """[n] int64: versions and, behind them, those whose rows come, whose places are entered
        into a table of all sources."""
        for kind in kinds:
            if kind in self._wanted:
                self._wanted[kind].number(table, versions.size)
                versions = np.concatenate((versions, self._wanted[kind].all_versions()))
        return versions

    def _sampled(
        self, versions: Mapping[str, Ids], edges: Mapping[Relation, HopEdges], *, is_folded: bool
    ) -> TypedBlocks:
        sampler = self._sampler
        nodes, times = sampler.nodes_and_times(versions)
        subgraph = Subgraph(
            target=sampler.target,
            nodes=nodes,
            sizes=[dict(self._hop.destinations), {each: ids.size for each, ids in nodes.items()}],
            hops=[dict(edges)],
            topologies=sampler.topologies,
            original_ids=sampler.original_ids,
            iteration_key=self._key,
            # Edges that are left are weighted already.
            inclusions=[None if is_folded else self._inclusion],
            drawn_as=sampler.drawn_as,
            stored_as=sampler.stored_as,
            times=times,
        )
        (blocks,) = subgraph.typed_blocks()
        return blocks
