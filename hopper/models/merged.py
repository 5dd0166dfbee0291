"""Merges all relations of a layer into one pattern of edges (HiFuse, sections 4.2 and 4.3).

With hundreds of relations, one kernel for each has little to do. Here the edges of all relations
are concatenated, over one matrix of rows grouped by type and then by index. The edges of one
destination and one relation are a *segment*. A layer then takes one sum over all edges, one grouped
product over all segments, and one sum over the segments of each destination.

A linear projection may come before or after the first sum. Which order is cheaper depends on the
numbers of rows, segments and edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cache_server.kernel import kernel
from hopper.device.copies import to_device
from hopper.graph.block import Block, Edges, TypedBlocks
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.models.typed_rows import join_rows
from hopper.ops.attention import segment_max
from hopper.ops.csr import destinations, sources_to_destinations
from hopper.ops.grouped import grouped_product
from hopper.ops.groups import Groups
from hopper.ops.message_passing import gather
from hopper.ops.precision import in_full

_PLAIN, _WEIGHTED = 10, 50
"""The cost of gathering a number, without and with a weight, in multiplications of a product.

Measured on two cores with 30 to 180 thousand edges and 64 columns."""


@dataclass(frozen=True)
class MergedRelations:
    """The edges of several relations of a hop, which :func:`merge_relations` makes."""

    relations: tuple[Relation, ...]
    """the relations. Segments are in this order, then by destination"""
    readers: Mapping[Any, tuple[Relation, ...]]
    """by source type, in the order of rows, the relations from it; by relation, the relation
    itself, if they are ``apart``"""
    projections: Groups
    """which rows, of those of all source types together, each relation projects"""
    edges: Mapping[Relation, Edges]
    """the edges of each relation"""
    segment_starts: Tensor
    """[segments + 1] int64: the first edge of each segment"""
    segment_places: Tensor
    """[segments] int64: the destination of each segment"""
    groups: Groups
    """the segments of each relation"""
    destinations: Edges
    """the edges from segments to the destinations of all types"""
    places: Mapping[str, slice]
    """by type, the range of its destinations among those of all types"""
    sources_by_type: Groups
    """the rows of each key of ``readers``"""
    destinations_by_type: Groups
    """the destinations of each type"""
    apart: bool = False
    """whether each relation has rows of its own, which are projected already"""
    _segments: dict[bool, Edges] = field(default_factory=dict, init=False, repr=False)

    def segments(self, *, projected: bool) -> Edges:
        """Return the edges from rows, or from projections if ``projected``, to segments."""
        if projected not in self._segments:
            read = self.projections
            rows, firsts = (
                (read.products, read.bounds[:-1]) if projected else (read.rows, read.firsts)
            )
            self._segments[projected] = Edges(
                rows,
                self.groups.products,
                self.segment_starts,
                _merge_sources(list(self.edges.values()), firsts),
            )
        return self._segments[projected]

    def add_segments(self, rows: Tensor) -> Tensor:
        """Sum the rows [segments, ...] of each destination, to [destinations, ...]."""
        # A segment has one destination, so its gradient is a row of the destination's.
        segments = self.segment_places
        return gather(self.destinations, sources_to_destinations, lambda _: segments, in_full(rows))

    def softmax_terms(self, pattern: Edges, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest of the logits [edges, heads] of each destination, [destinations,
        heads], which has no gradient, and ``exp(logit - largest)`` of each edge, [edges, heads].
        The pattern is that of the edges to segments."""
        tops = segment_max(pattern, logits).index_select(0, self.destinations.indices)
        top = segment_max(self.destinations, tops)
        ends = self.segment_places.index_select(0, destinations(pattern))
        return top, (logits - top.index_select(0, ends)).exp()

    def joint_partial(self, top: Tensor, totals: Tensor, messages: Tensor) -> Tensor:
        """Return the partial of JointSoftmax, [destinations, heads, 2 + width]: of the largest
        logits, and of each segment the sum of terms [segments, heads], and that of messages times
        their terms [segments, heads, width]."""
        sums = self.add_segments(torch.cat((totals.unsqueeze(-1), messages), -1))
        return torch.cat((top.unsqueeze(-1), sums), -1)

    @property
    def blocks(self) -> dict[Relation, Block]:
        """The edges that are blocks, which is all of them or none."""
        return {r: edges for r, edges in self.edges.items() if isinstance(edges, Block)}

    @property
    def num_edges(self) -> int:
        """The number of edges of all relations."""
        return sum(edges.num_edges for edges in self.edges.values())

    @property
    def equally_likely(self) -> bool:
        """Return whether, in each segment, all edges had the same probability."""
        return all(block.equally_likely for block in self.blocks.values())

    @property
    def is_whole(self) -> bool:
        """Return whether no other server has edges of the same segments."""
        return all(block.drawn is None for block in self.blocks.values())

    def degrees(self) -> Tensor:
        """Return the number of edges of each segment, [segments] int64, at least 1."""
        return self.segment_starts[1:] - self.segment_starts[:-1]

    def sources(self, h: Mapping[Any, Tensor]) -> Tensor:
        """Concatenate the rows [num_src, ...] of all keys of ``readers``, to [rows, ...]."""
        return join_rows(h, list(self.readers))

    def destination_rows(self, h_dst: Mapping[str, Tensor]) -> Tensor:
        """Concatenate the rows [num_dst, ...] of all types of destinations, to [rows, ...]."""
        return join_rows(h_dst, list(self.places))

    def segment_rows(self, rows: Tensor) -> Tensor:
        """Return the row of each segment's destination, [segments, ...], from those of all
        destinations."""
        segments = self.segment_places
        return gather(self.destinations, lambda _: segments, sources_to_destinations, in_full(rows))

    def project_rows(self, h: Mapping[str, Tensor], matrices: Tensor) -> Tensor:
        """Multiply each row [in] by the matrices [relations, in, out] of the relations from its
        type, to [projections, out]."""
        return grouped_product(self.sources(h), matrices, self.projections)

    def project_first(self, in_dim: int, out_dim: int, heads: int = 0) -> bool:
        """Return whether a projection is cheaper before the sum over edges than after it.

        Parameters
        ----------
        heads: the number of weighted sums of unprojected rows that replace one weighted sum of
            projected rows; 0 = sums have no weights, and one replaces one.
        """
        edges, segments = self.num_edges, self.groups.products
        gathered = edges * (_WEIGHTED if heads else _PLAIN)
        before = self.projections.products * in_dim * out_dim + gathered * out_dim
        after = segments * in_dim * out_dim + gathered * in_dim * max(1, heads)
        return before < after


def merge_relations(
    blocks: TypedBlocks, relations: Sequence[Relation], types: Sequence[str], *, apart: bool = False
) -> MergedRelations:
    """Merge some relations of a hop, sorted and at least one, into the given types of destinations.
    The result is stored with the hop and made once.

    Relations are ``apart`` if each has rows of its own, and not those of its source type.
    """
    key = ("merged", tuple(relations), tuple(types), apart)
    if key not in blocks.prepared:
        by_relation = {relation: blocks.blocks[relation] for relation in relations}
        sources = None if apart else blocks.sources
        blocks.prepared[key] = merge_patterns(by_relation, sources, blocks.destinations, types)
    return blocks.prepared[key]


def merge_patterns(
    edges: Mapping[Relation, Edges],
    sources: Mapping[str, int] | None,
    destinations: Mapping[str, int],
    types: Sequence[str],
) -> MergedRelations:
    """Merge the edges of relations, sorted and at least one, without their blocks.

    Sources and destinations are numbers of rows by type. Without sources, each relation has rows of
    its own. The order of destinations is that of ``types``.
    """
    relations = tuple(edges)
    keys: dict[Relation, Any] = {r: r if sources is None else r.src for r in relations}
    counts: Mapping[Any, int] = {r: edges[r].num_src for r in edges} if sources is None else sources
    readers = {
        key: tuple(relation for relation in relations if keys[relation] == key)
        for key in sorted(set(keys.values()))
    }
    sources_by_type = Groups.of_sizes(counts[key] for key in readers)
    first_rows = dict(zip(readers, sources_by_type.firsts, strict=True))
    projections = Groups(
        [*accumulate((counts[keys[r]] for r in relations), initial=0)],
        [first_rows[keys[r]] for r in relations],
    )
    destinations_by_type = Groups.of_sizes(destinations[name] for name in types)
    places = {name: made for name, (_, made) in zip(types, destinations_by_type, strict=True)}
    firsts = [places[relation.dst].start for relation in relations]
    merged = list(edges.values()), firsts, destinations_by_type.rows
    starts, segment_places, bounds, into = _merge_on_host(*merged) or _merge_on_device(*merged)
    return MergedRelations(
        relations,
        readers,
        projections,
        edges,
        starts,
        segment_places,
        Groups(bounds),
        into,
        places,
        sources_by_type,
        destinations_by_type,
        apart=sources is None,
    )


_Segments = tuple[Tensor, Tensor, Sequence[int], Edges]
"""The first edge and the destination of each segment, the first segment of each relation, and the
edges from segments to destinations."""


def _on_host(edges: Sequence[Edges]) -> list[tuple[Ids, Ids]] | None:
    """Return the edges in host memory; None if some are not there."""
    found = [of_relation.edges_on_host() for of_relation in edges]
    on_host = [arrays for arrays in found if arrays is not None]
    return on_host if len(on_host) == len(found) else None


def _merge_sources(edges: Sequence[Edges], firsts: Sequence[int]) -> Tensor:
    """Return [edges] int64: the source of each edge, where those of a relation begin at a place."""
    found = _on_host(edges)
    if found is None:
        return torch.cat([of.indices + first for of, first in zip(edges, firsts, strict=True)])
    indices = [indices + first for (_, indices), first in zip(found, firsts, strict=True)]
    return to_device(np.concatenate(indices), edges[0].device)


def _merge_on_host(
    edges: Sequence[Edges], firsts: Sequence[int], destinations: int
) -> _Segments | None:
    """Merge edges that were drawn in host memory; None if some edges are not there.

    Two arrays are then copied to a device, instead of three for each relation.
    """
    found = _on_host(edges)
    if found is None:
        return None
    indptrs, indices = zip(*found, strict=True)
    facts = [(p.size, i.size, first) for p, i, first in zip(indptrs, indices, firsts, strict=True)]
    merged, bounds = _merge(np.concatenate(indptrs), np.array(facts, np.int64), destinations)
    number = int(bounds[-1])
    sizes = [number + 1, number, destinations + 1, number]
    starts, places, *into = to_device(merged, edges[0].device).split(sizes)
    return starts, places, bounds.tolist(), Edges(number, destinations, *into)


@kernel
def _merge(indptr: Ids, facts: Ids, destinations: int) -> tuple[Ids, Ids]:
    """Find the segments of the edges of relations, and those of each of ``destinations``.

    ``indptr`` is that of one relation after the other; ``facts`` are the size of each, its number
    of edges, and its first destination among those of all types.

    Returns one array, and the first segment of each relation, [relations + 1]. The array has the
    first edge of each segment [segments + 1], the destination of each segment [segments], and the
    edges from segments to destinations: ``indptr`` [destinations + 1] and ``indices`` [segments].
    """
    count = facts.shape[0]
    pointers, edges = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    pointers[1:] = np.cumsum(facts[:, 0])
    edges[1:] = np.cumsum(facts[:, 1])
    bounds = np.zeros(count + 1, np.int64)
    for r in range(count):
        segments_here = 0
        for p in range(pointers[r], pointers[r + 1] - 1):
            segments_here += indptr[p + 1] > indptr[p]
        bounds[r + 1] = segments_here
    bounds = np.cumsum(bounds)
    number = bounds[count]
    merged = np.empty(3 * number + destinations + 2, np.int64)
    starts, places = merged[: number + 1], merged[number + 1 : 2 * number + 1]
    stop = merged.size - number
    ends, segments = merged[2 * number + 1 : stop], merged[stop:]
    starts[number] = edges[count]
    for r in range(count):
        segment = bounds[r]
        for p in range(pointers[r], pointers[r + 1] - 1):
            if indptr[p + 1] > indptr[p]:
                starts[segment] = edges[r] + indptr[p]
                places[segment] = facts[r, 2] + p - pointers[r]
                segment += 1
    # The segments of a destination are in the order of relations.
    ends[:] = 0
    for destination in places:
        ends[destination + 1] += 1
    ends[:] = np.cumsum(ends)
    next_slot = ends[:destinations].copy()
    for s in range(number):
        segments[next_slot[places[s]]] = s
        next_slot[places[s]] += 1
    return merged, bounds


def _merge_on_device(edges: Sequence[Edges], firsts: Sequence[int], destinations: int) -> _Segments:
    """Merge edges that were drawn on a device."""
    degrees, places, bounds = [], [], [0]
    for relation_edges, first in zip(edges, firsts, strict=True):
        counts = relation_edges.edges_per_destination()
        nonempty = counts.nonzero().squeeze(1)
        degrees.append(counts.index_select(0, nonempty))
        places.append(nonempty + first)
        bounds.append(bounds[-1] + nonempty.numel())
    place = torch.cat(places)
    starts = _starts(torch.bincount(place, minlength=destinations))
    into = Edges(place.numel(), destinations, starts, place.argsort(stable=True))
    return _starts(torch.cat(degrees)), place, bounds, into


def _starts(counts: Tensor) -> Tensor:
    """Return the start of each range of [n] counts, and the end of the last one, [n + 1]."""
    return torch.cat((counts.new_zeros(1), counts.cumsum(0)))
