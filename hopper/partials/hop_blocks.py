"""The edges of a hop as blocks: what stays of them, and where the rows that come stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler, dropout_key
from hopper.micrograph.subgraph import HopEdges, Subgraph
from hopper.partials.fold import APART, FOLDED, Folded, fold_edges
from hopper.partials.frontiers import Ids, OwnFrontier, Wanted
from hopper.partials.hop import Hop
from hopper.partials.plan import Weighted
from hopper.partials.requests import SumEdges
from hopper.partials.wire import Kind, Sums

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Folding:
    """A relation's edges once some of them are added up elsewhere.

    left: those that stay, and those that others add up. fates: [ranks], as of
    :func:`hopper.partials.fold.fold_edges`. sums, edges: [ranks + 1], where each rank's begin.
    inline: how many sums are among the sources of the edges that stay.
    weights: [edges], of all that were drawn.
    """

    left: Folded
    fates: NDArray[np.int8]
    sums: Ids
    edges: Ids
    inline: int
    weights: NDArray[Any]

    def asked_of(self, rank: int) -> SumEdges:
        """What a rank adds up."""
        sums, edges = (slice(each[rank], each[rank + 1]) for each in (self.sums, self.edges))
        ends, ids = self.left.sizes[sums], self.left.sources[edges]
        if ends.size >= ids.size:
            ends = self.left.numbers[edges] - np.int32(sums.start)
        return SumEdges(ends, ids, self.left.sum_weights[edges])


class HopBlocks:
    """Makes the blocks of a hop, as one rank has them.

    Parameters
    ----------
    number: which hop it is. moment: epoch and iteration.

    Attributes
    ----------
    wanted: by kind other than sums, the rows that come.
    """

    def __init__(
        self,
        hop: Hop,
        sampler: NeighborSampler,
        number: int,
        moment: tuple[int, int],
        rank: int,
    ) -> None:
        self._hop, self._sampler, self._number = hop, sampler, number
        self._rank, self._world = rank, hop.world
        self._key = dropout_key(sampler.dropout_seed, *moment)
        kinds = [each for each in hop.wires.forms if not isinstance(each, Sums)]
        self.wanted: dict[Kind, Wanted] = {each: hop.wanted(each) for each in kinds}

    def counts(self, kind: Kind) -> list[int]:
        """By rank, how many rows of a kind come from it."""
        if not isinstance(kind, Sums):
            return self.wanted[kind].counts
        name = kind.node_type
        if name not in self._hop.folded:
            return [0] * self._world
        counts: list[int] = (self._hop.sums[name] * self._hop.folded[name]).tolist()
        return counts

    def fates(self, relation: Relation) -> NDArray[np.int8]:
        """[ranks]: what becomes of the edges from each."""
        hop = self._hop
        fates = np.zeros(self._world, np.int8)
        if hop.wires.merged:
            fates[hop.projected[relation.src]] = APART
        if relation.dst in hop.folded:
            fates[hop.folded[relation.dst]] = FOLDED
        return fates

    def as_drawn(self, destinations: Mapping[str, Ids]) -> Mapping[Relation, Block]:
        """All edges, over the destinations and all sources behind them.

        Parameters
        ----------
        destinations: by type, [n] int64 global ids.
        """
        hop, nodes, edges = self._hop, dict(destinations), {}
        for name, found in hop.found.items():
            nodes[name] = np.concatenate((destinations[name], found.nodes))
        for each, (offsets, _, positions) in hop.drawn.items():
            places = hop.places(each) + destinations[each.src].size
            edges[each] = HopEdges(offsets, places, positions)
        return self._sampled(nodes, edges, is_folded=False).blocks

    def fold(self, relation: Relation, fates: NDArray[np.int8], weights: NDArray[Any]) -> Folding:
        """What is left of a relation's edges; columns are places among the sources of its type and,
        behind these, sums.

        Parameters
        ----------
        weights: [edges].
        """
        hop, name = self._hop, relation.dst
        edges = np.where(fates == FOLDED, hop.edges[relation], 0)
        sums = np.where(fates == FOLDED, hop.sums[name], 0)
        numbers = hop.numbers.get(name, np.empty((0, 0), np.int32))
        # Sums are over all relations into a type; one of these has them among its sources.
        is_first = not hop.wires.merged and relation == hop.into(name)[0]
        inline = int(sums.sum()) if is_first else 0
        offsets, ids, _ = hop.drawn[relation]
        left = fold_edges(
            offsets,
            hop.places(relation),
            ids,
            hop.owners(relation),
            weights,
            fates,
            numbers,
            hop.edges[relation],
            int(sums.sum()),
            hop.found[relation.src].nodes.size if inline else -1,
        )
        return Folding(left, fates, _bounds(sums), _bounds(edges), inline, weights)

    def make(
        self, own: Mapping[str, OwnFrontier], folding: Mapping[Relation, Folding]
    ) -> TypedBlocks:
        """The blocks of all relations, over own rows and those that come.

        Parameters
        ----------
        own: as it is when other ranks have told what they want.
        folding: by relation; empty where edges are as they were drawn.
        """
        hop = self._hop
        nodes = {name: frontier.nodes for name, frontier in own.items()}
        tables = {name: self._own_columns(name, own[name]) for name in hop.found}
        for name in hop.found.keys() & self.wanted.keys():
            self.wanted[name].number(tables[name], own[name].size)
            nodes[name] = np.concatenate((nodes[name], self.wanted[name].nodes()))
        typed = self._sampled(nodes, {}, is_folded=bool(folding))
        blocks = {}
        for each, (offsets, _, positions) in hop.drawn.items():
            table, around, left = tables[each.src], nodes, folding.get(each)
            if each in self.wanted and not hop.wires.merged:
                table = table.copy()
                self.wanted[each].number(table, nodes[each.src].size)
                behind = np.concatenate((nodes[each.src], self.wanted[each].nodes()))
                around = {**nodes, each.src: behind}
            if left is None:
                edges = HopEdges(offsets, table[hop.places(each)], positions)
            else:
                first = around[each.src].size
                table = np.concatenate((table, np.arange(first, first + left.inline)))
                edges = HopEdges(left.left.indptr, table[left.left.columns], _NONE)
            block = self._sampled(around, {each: edges}, is_folded=bool(folding)).blocks[each]
            if left is not None:
                block.num_src += left.inline
                block.drawn = torch.from_numpy(np.diff(offsets))
            blocks[each] = block
        return replace(typed, blocks=blocks)

    def more(self, folding: Mapping[Relation, Folding]) -> dict[str, Weighted]:
        """By type of destinations, the patterns over the projected rows and sums that come, of
        a layer that takes all of its relations at once."""
        found = {}
        for name in {each.dst: None for each in folding}:
            first, ends, columns, weights = 0, [], [], []
            for each in self._hop.into(name):
                if each not in self.wanted:
                    continue
                table = np.empty(self._hop.found[each.src].nodes.size, np.int64)
                self.wanted[each].number(table, first)
                first += sum(self.wanted[each].counts)
                apart = folding[each].fates[self._hop.owners(each)] == APART
                offsets = self._hop.drawn[each][0]
                ends.append(np.repeat(np.arange(offsets.size - 1), np.diff(offsets))[apart])
                columns.append(table[self._hop.places(each)[apart]])
                weights.append(folding[each].weights[apart])
            numbers = self._hop.numbers.get(name)
            number_type = folding[self._hop.into(name)[0]].weights.dtype
            if numbers is not None:
                rows, ranks = np.nonzero(numbers >= 0)
                ends.append(rows)
                columns.append(first + numbers[rows, ranks])
                weights.append(np.ones(rows.size, number_type))
                first += rows.size
            if not ends:
                continue
            found[name] = _pattern(
                name, self._hop.destinations[name], first, ends, columns, weights
            )
        return found

    def raw_nodes(self, node_type: str) -> Block:
        """The nodes of a type whose input rows come."""
        original = self._sampler.original_ids[node_type][self.wanted[node_type].nodes()]
        stored = self._sampler.stored_as.get(node_type, node_type)
        return Block.of_nodes(stored, torch.from_numpy(original), self._key)

    def _own_columns(self, name: str, own: OwnFrontier) -> Ids:
        """[sources]: the rows of this rank's among all of a type."""
        found = self._hop.found[name]
        table, part = np.empty(found.nodes.size, np.int64), found.part(self._rank)
        table[part] = own.rows(found.nodes[part])
        return table

    def _sampled(
        self,
        nodes: Mapping[str, Ids],
        edges: Mapping[Relation, HopEdges],
        *,
        is_folded: bool,
    ) -> TypedBlocks:
        sampler = self._sampler
        subgraph = Subgraph(
            target=sampler.target,
            nodes=dict(nodes),
            sizes=[dict(self._hop.destinations), {each: ids.size for each, ids in nodes.items()}],
            hops=[dict(edges)],
            topologies=sampler.topologies,
            original_ids=sampler.original_ids,
            iteration_key=self._key,
            # Edges that are left are weighted already.
            inclusions=[None if is_folded else sampler.inclusions[self._number]],
            drawn_as=sampler.drawn_as,
            stored_as=sampler.stored_as,
        )
        (blocks,) = subgraph.typed_blocks()
        return blocks


def _pattern(
    name: str,
    destinations: int,
    rows: int,
    ends: Sequence[Ids],
    columns: Sequence[Ids],
    weights: Sequence[NDArray[Any]],
) -> Weighted:
    """Edges in any order as a pattern of sums: [destinations] <- [rows]."""
    all_ends, order = np.concatenate(ends), np.argsort(np.concatenate(ends), kind="stable")
    block = Block.of_edges(
        Relation(name, "", name),
        _bounds(np.bincount(all_ends, minlength=destinations)),
        np.concatenate(columns)[order],
        rows,
    )
    return block, torch.from_numpy(np.concatenate(weights)[order])


def _bounds(sizes: Ids) -> Ids:
    """[n + 1] int64: where each of several stretches, side by side, begins, and the end."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
