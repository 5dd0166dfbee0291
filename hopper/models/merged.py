"""All relations of a layer as one pattern of edges (HiFuse, sections 4.2 and 4.3).

With hundreds of relations a kernel each has little to do. Here the edges of all relations lie
behind one another, over one matrix of rows grouped by type and then by index, and what a
destination has of one relation is a *segment*. A layer then takes one gathering sum over all edges,
one grouped product over all segments, and one gathering sum over the segments of each destination.

A linear projection may come before or after the first sum: what is cheaper depends on how many
rows, segments and edges there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from hopper.device_copies import to_device
from hopper.graph.block import Block, Edges, TypedBlocks
from hopper.graph.schema import Relation
from hopper.models.merge_edges import RelationEdges, merge_edges

_PLAIN, _WEIGHTED = 10, 50
"""what a number that is gathered, or gathered with a weight, costs in multiplications of a product
(two cores, 30 to 180 thousand edges, 64 columns)"""


@dataclass(frozen=True)
class MergedRelations:
    """The edges of several relations of a hop; made by :func:`merge_relations`.

    Attributes
    ----------
    relations: segments stand in this order, then by destination.
    readers: by type of sources, in the order in which their rows lie, the relations from it.
    rows: of all source types together.
    projections: rows that have to be made if every relation has its own of each of its sources.
    indices: [edges] int64: the row of each edge's source.
    projected: [edges] int64: its place among the rows that relations have of their own: by type,
        then by index, then by relation.
    segment_starts: [segments + 1] int64: which edges are a segment's.
    segment_places: [segments] int64: the destination of each.
    bounds: [relations + 1]: which segments are a relation's.
    destinations: [destinations of all types] <- [segments].
    places: by type, which of these destinations are its own.
    blocks: by relation; of edges that know nothing of their nodes, none.
    """

    relations: tuple[Relation, ...]
    readers: Mapping[str, tuple[Relation, ...]]
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
    _segments: dict[bool, Edges] = field(default_factory=dict, init=False, repr=False)

    def segments(self, *, projected: bool) -> Edges:
        """[segments] <- [rows of all types], or, ``projected``, <- those that relations have of
        their own."""
        if projected not in self._segments:
            indices, rows = (
                (self.projected, self.projections) if projected else (self.indices, self.rows)
            )
            starts = self.segment_starts
            self._segments[projected] = Edges(rows, starts.numel() - 1, starts, indices)
        return self._segments[projected]

    @property
    def equally_likely(self) -> bool:
        """Whether all in-edges of a destination by one relation had the same probability."""
        return all(block.equally_likely for block in self.blocks.values())

    def degrees(self) -> Tensor:
        """[segments] int64, at least 1: edges of each."""
        return self.segment_starts[1:] - self.segment_starts[:-1]

    def sources(self, h: Mapping[str, Tensor]) -> Tensor:
        """[rows, ...]: those of all source types, one type behind the other.

        Parameters
        ----------
        h: by type, [num_src, ...].
        """
        return _stacked([h[each] for each in self.readers])

    def segment_rows(self, h_dst: Mapping[str, Tensor]) -> Tensor:
        """[segments, ...]: the row of each segment's destination.

        Parameters
        ----------
        h_dst: by type, [num_dst, ...].
        """
        return _stacked([h_dst[each] for each in self.places]).index_select(0, self.segment_places)

    def projected_rows(self, h: Mapping[str, Tensor], matrices: Tensor) -> Tensor:
        """[projections, out]: every source's row times the matrices of the relations from its type.

        Parameters
        ----------
        h: by type, [num_src, in].
        matrices: [relations, in, out].
        """
        place = {each: index for index, each in enumerate(self.relations)}
        found = []
        for name, relations in self.readers.items():
            chosen = torch.tensor([place[each] for each in relations], device=matrices.device)
            wide = matrices.index_select(0, chosen).transpose(0, 1).flatten(1)
            found.append((h[name] @ wide).view(-1, matrices.shape[2]))
        return _stacked(found)

    def project_first(self, in_dim: int, out_dim: int, heads: int = 0) -> bool:
        """Whether a projection from one width to another is cheaper before the sum over edges.

        Parameters
        ----------
        heads: weighted sums of rows as they come that take the place of one of projected rows; 0 =
            a plain one does.
        """
        edges, segments = self.indices.numel(), self.bounds[-1]
        gathered = edges * (_WEIGHTED if heads else _PLAIN)
        before = self.projections * in_dim * out_dim + gathered * out_dim
        after = segments * in_dim * out_dim + gathered * in_dim * max(1, heads)
        return before < after


def merge_relations(
    blocks: TypedBlocks, relations: Sequence[Relation], types: Sequence[str]
) -> MergedRelations:
    """Lay relations of a hop behind one another; kept with the hop for whoever asks again.

    Parameters
    ----------
    relations: one at least, sorted; each ends in one of ``types``.
    types: of the destinations.
    """
    key = ("merged", tuple(relations), tuple(types))
    if key not in blocks.prepared:
        own = {each: blocks.blocks[each] for each in relations}
        merged = merge_patterns(own, blocks.sources, blocks.destinations, types)
        blocks.prepared[key] = replace(merged, blocks=own)
    found: MergedRelations = blocks.prepared[key]
    return found


def merge_patterns(
    edges: Mapping[Relation, Edges],
    sources: Mapping[str, int],
    destinations: Mapping[str, int],
    types: Sequence[str],
) -> MergedRelations:
    """:func:`merge_relations` of edges alone.

    Parameters
    ----------
    edges: by relation, sorted, one at least. sources, destinations: number of rows by type.
    """
    relations = tuple(edges)
    readers = {
        name: tuple(each for each in relations if each.src == name)
        for name in sorted({each.src for each in relations})
    }
    sizes = [sources[name] for name in readers]
    widths = [sources[name] * len(own) for name, own in readers.items()]
    row_starts = dict(zip(readers, accumulate(sizes, initial=0), strict=False))
    own_starts = dict(zip(readers, accumulate(widths, initial=0), strict=False))
    ends = list(accumulate((destinations[name] for name in types), initial=0))
    laid = _Laid(
        {
            each: (
                row_starts[each.src],
                len(readers[each.src]),
                own_starts[each.src] + readers[each.src].index(each),
                ends[types.index(each.dst)],
            )
            for each in relations
        },
        ends[-1],
    )
    found = _merge_on_host(edges, laid) or _merge_on_device(edges, laid)
    return MergedRelations(
        relations,
        readers,
        sum(sizes),
        sum(widths),
        *found,
        {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(types)},
    )


class _Laid(NamedTuple):
    """Where relations' ends lie among those of all.

    places: by relation, the first row of its source type, the relations from that type, its first
    projection, and the first destination of its type. destinations: of all types.
    """

    places: Mapping[Relation, tuple[int, int, int, int]]
    destinations: int


_Found = tuple[Tensor, Tensor, Tensor, Tensor, tuple[int, ...], Edges]
"""from ``indices`` to ``destinations`` of :class:`MergedRelations`"""


def _merge_on_host(blocks: Mapping[Relation, Edges], laid: _Laid) -> _Found | None:
    """None where some edges are not in host memory."""
    edges = []
    for relation, block in blocks.items():
        own = block.edges_on_host()
        if own is None:
            return None
        edges.append(RelationEdges(*own, *laid.places[relation]))
    merged = merge_edges(edges, laid.destinations)
    device = next(iter(blocks.values())).device
    tensors = {
        name: to_device(array, device)
        for name, array in merged._asdict().items()
        if name != "bounds"
    }
    destinations = Edges(
        merged.segment_places.size,
        laid.destinations,
        tensors.pop("destination_starts"),
        tensors.pop("destination_segments"),
    )
    indices, projected, starts, places = tensors.values()
    return indices, projected, starts, places, tuple(merged.bounds.tolist()), destinations


def _merge_on_device(blocks: Mapping[Relation, Edges], laid: _Laid) -> _Found:
    """The same of edges that were drawn on a device."""
    indices, projected, degrees, places, bounds = [], [], [], [], [0]
    for relation, block in blocks.items():
        first_row, readers, first_projection, first_destination = laid.places[relation]
        counts = block.edges_per_destination()
        met = counts.nonzero().squeeze(1)
        indices.append(block.indices + first_row)
        projected.append(block.indices * readers + first_projection)
        degrees.append(counts.index_select(0, met))
        places.append(met + first_destination)
        bounds.append(bounds[-1] + met.numel())
    place = torch.cat(places)
    destinations = Edges(
        place.numel(),
        laid.destinations,
        _starts(torch.bincount(place, minlength=laid.destinations)),
        place.argsort(stable=True),
    )
    starts = _starts(torch.cat(degrees))
    return torch.cat(indices), torch.cat(projected), starts, place, tuple(bounds), destinations


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _starts(counts: Tensor) -> Tensor:
    """[n + 1]: where each of [n] counted stretches begins, and the end."""
    return torch.cat((counts.new_zeros(1), counts.cumsum(0)))
