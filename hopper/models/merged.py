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
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopper.device.copies import to_device
from hopper.graph.block import Block, Edges, TypedBlocks
from hopper.graph.schema import Relation
from hopper.models.merge_edges import RelationEdges, merge_edges

_PLAIN, _WEIGHTED = 10, 50
"""The cost of gathering a number, without and with a weight, in multiplications of a product.

Measured on two cores with 30 to 180 thousand edges and 64 columns."""


@dataclass(frozen=True)
class MergedRelations:
    """The edges of several relations of a hop, which :func:`merge_relations` makes.

    Attributes
    ----------
    relations: the relations. Segments are in this order, then by destination.
    readers: by source type, in the order of rows, the relations from it; by relation, the relation
        itself, if they are ``apart``.
    rows: the number of rows of all source types together.
    projections: the number of projections, one for each row and relation from its type.
    indices: [edges] int64: the row of each edge's source.
    projected: [edges] int64: the projection of each edge's source. Projections are ordered by type,
        then by row, then by relation.
    segment_starts: [segments + 1] int64: the first edge of each segment.
    segment_places: [segments] int64: the destination of each segment.
    bounds: [relations + 1]: the first segment of each relation.
    destinations: the edges from segments to the destinations of all types.
    places: by type, the range of its destinations among those of all types.
    blocks: by relation, its block; empty if only edges were merged.
    apart: whether each relation has rows of its own, which are projected already.
    """

    relations: tuple[Relation, ...]
    readers: Mapping[Any, tuple[Relation, ...]]
    rows: int
    projections: int
    indices: Tensor
    projected: Tensor
    segment_starts: Tensor
    segment_places: Tensor
    bounds: tuple[int, ...]
    destinations: Edges
    places: Mapping[str, slice]
    blocks: Mapping[Relation, Block] = field(default_factory=dict)
    apart: bool = False
    _segments: dict[bool, Edges] = field(default_factory=dict, init=False, repr=False)

    def segments(self, *, projected: bool) -> Edges:
        """Return the edges from rows, or from projections if ``projected``, to segments."""
        if projected not in self._segments:
            indices, rows = (
                (self.projected, self.projections) if projected else (self.indices, self.rows)
            )
            starts = self.segment_starts
            self._segments[projected] = Edges(rows, starts.numel() - 1, starts, indices)
        return self._segments[projected]

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
        """Concatenate the rows of all source types, or relations, to [rows, ...].

        Parameters
        ----------
        h: by key of ``readers``, [num_src, ...].
        """
        return _concatenate([h[name] for name in self.readers])

    def segment_rows(self, h_dst: Mapping[str, Tensor]) -> Tensor:
        """Return the row of each segment's destination, [segments, ...].

        Parameters
        ----------
        h_dst: by type, [num_dst, ...].
        """
        return _concatenate([h_dst[name] for name in self.places]).index_select(
            0, self.segment_places
        )

    def project_rows(self, h: Mapping[str, Tensor], matrices: Tensor) -> Tensor:
        """Multiply each row by the matrices of the relations from its type, to [projections, out].

        Parameters
        ----------
        h: by type, [num_src, in].
        matrices: [relations, in, out].
        """
        index_of = {relation: index for index, relation in enumerate(self.relations)}
        projections = []
        for name, relations in self.readers.items():
            indices = [index_of[relation] for relation in relations]
            order = torch.tensor(indices, device=matrices.device)
            wide = matrices.index_select(0, order).transpose(0, 1).flatten(1)
            projections.append((h[name] @ wide).view(-1, matrices.shape[2]))
        return _concatenate(projections)

    def project_first(self, in_dim: int, out_dim: int, heads: int = 0) -> bool:
        """Return whether a projection is cheaper before the sum over edges than after it.

        Parameters
        ----------
        heads: the number of weighted sums of unprojected rows that replace one weighted sum of
            projected rows; 0 = sums have no weights, and one replaces one.
        """
        edges, segments = self.indices.numel(), self.bounds[-1]
        gathered = edges * (_WEIGHTED if heads else _PLAIN)
        before = self.projections * in_dim * out_dim + gathered * out_dim
        after = segments * in_dim * out_dim + gathered * in_dim * max(1, heads)
        return before < after


def merge_relations(
    blocks: TypedBlocks,
    relations: Sequence[Relation],
    types: Sequence[str],
    *,
    apart: bool = False,
) -> MergedRelations:
    """Merge relations of a hop. The result is stored with the hop and made once.

    Parameters
    ----------
    relations: at least one, sorted. Each leads into one of ``types``.
    types: the types of destinations.
    apart: whether each relation has rows of its own, and not those of its source type.
    """
    key = ("merged", tuple(relations), tuple(types), apart)
    if key not in blocks.prepared:
        by_relation = {relation: blocks.blocks[relation] for relation in relations}
        sources = None if apart else blocks.sources
        patterns = merge_patterns(by_relation, sources, blocks.destinations, types)
        blocks.prepared[key] = replace(patterns, blocks=by_relation)
    merged: MergedRelations = blocks.prepared[key]
    return merged


def merge_patterns(
    edges: Mapping[Relation, Edges],
    sources: Mapping[str, int] | None,
    destinations: Mapping[str, int],
    types: Sequence[str],
) -> MergedRelations:
    """Merge the edges of relations, without their blocks.

    Parameters
    ----------
    edges: by relation, sorted, at least one.
    sources, destinations: the number of rows by type; None = each relation has rows of its own.
    types: the types of destinations.
    """
    relations = tuple(edges)
    keys: dict[Relation, Any] = {r: r if sources is None else r.src for r in relations}
    counts: Mapping[Any, int] = {r: edges[r].num_src for r in edges} if sources is None else sources
    readers = {
        key: tuple(relation for relation in relations if keys[relation] == key)
        for key in sorted(set(keys.values()))
    }
    sizes = [counts[key] for key in readers]
    widths = [counts[key] * len(relations_from) for key, relations_from in readers.items()]
    row_starts = dict(zip(readers, accumulate(sizes, initial=0), strict=False))
    projection_starts = dict(zip(readers, accumulate(widths, initial=0), strict=False))
    ends = list(accumulate((destinations[name] for name in types), initial=0))
    offsets = _Offsets(
        {
            relation: (
                row_starts[key],
                len(readers[key]),
                projection_starts[key] + readers[key].index(relation),
                ends[types.index(relation.dst)],
            )
            for relation, key in keys.items()
        },
        ends[-1],
    )
    merged = _merge_on_host(edges, offsets) or _merge_on_device(edges, offsets)
    return MergedRelations(
        relations,
        readers,
        sum(sizes),
        sum(widths),
        *merged,
        {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(types)},
        apart=sources is None,
    )


class _Offsets(NamedTuple):
    """The offsets of relations' ends among those of all types.

    Attributes
    ----------
    places: by relation, the first row of its source type, the number of relations from that type,
        the relation's first projection, and the first destination of its destination type.
    destinations: the number of destinations of all types.
    """

    places: Mapping[Relation, tuple[int, int, int, int]]
    destinations: int


_Merged = tuple[Tensor, Tensor, Tensor, Tensor, tuple[int, ...], Edges]
"""The attributes of :class:`MergedRelations` from ``indices`` to ``destinations``."""


def _merge_on_host(blocks: Mapping[Relation, Edges], offsets: _Offsets) -> _Merged | None:
    """Merge edges in host memory; None if some edges are not there."""
    edges = []
    for relation, block in blocks.items():
        host_edges = block.edges_on_host()
        if host_edges is None:
            return None
        edges.append(RelationEdges(*host_edges, *offsets.places[relation]))
    merged = merge_edges(edges, offsets.destinations)
    device = next(iter(blocks.values())).device
    tensors = {
        name: to_device(array, device)
        for name, array in merged._asdict().items()
        if name != "bounds"
    }
    destinations = Edges(
        merged.segment_places.size,
        offsets.destinations,
        tensors.pop("destination_starts"),
        tensors.pop("destination_segments"),
    )
    indices, projected, starts, places = tensors.values()
    return indices, projected, starts, places, tuple(merged.bounds.tolist()), destinations


def _merge_on_device(blocks: Mapping[Relation, Edges], offsets: _Offsets) -> _Merged:
    """Merge edges that were drawn on a device."""
    indices, projected, degrees, places, bounds = [], [], [], [], [0]
    for relation, block in blocks.items():
        first_row, readers, first_projection, first_destination = offsets.places[relation]
        counts = block.edges_per_destination()
        nonempty = counts.nonzero().squeeze(1)
        indices.append(block.indices + first_row)
        projected.append(block.indices * readers + first_projection)
        degrees.append(counts.index_select(0, nonempty))
        places.append(nonempty + first_destination)
        bounds.append(bounds[-1] + nonempty.numel())
    place = torch.cat(places)
    destinations = Edges(
        place.numel(),
        offsets.destinations,
        _starts(torch.bincount(place, minlength=offsets.destinations)),
        place.argsort(stable=True),
    )
    starts = _starts(torch.cat(degrees))
    return torch.cat(indices), torch.cat(projected), starts, place, tuple(bounds), destinations


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _starts(counts: Tensor) -> Tensor:
    """Return the start of each range of [n] counts, and the end of the last one, [n + 1]."""
    return torch.cat((counts.new_zeros(1), counts.cumsum(0)))
