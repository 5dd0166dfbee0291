"""Concatenates the edges of relations by one kernel in host memory (HiFuse, section 4.3).

Relations that are sampled in host memory are merged there, before they are copied to a device. Six
arrays are then copied, instead of three for each relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel

Ints = NDArray[np.int64]


class RelationEdges(NamedTuple):
    """The edges of one relation, with the offsets of their ends among all types.

    Attributes
    ----------
    indptr: [destinations + 1] int64.
    indices: [edges] int64, rows of the source type.
    first_row: the index of the source type's first row among all rows.
    readers: the number of relations from the source type.
    first_projection: the index, among the projections of all relations, of the source type's first
        row under this relation.
    first_destination: the index of the destination type's first row among all destinations.
    """

    indptr: Ints
    indices: Ints
    first_row: int
    readers: int
    first_projection: int
    first_destination: int


class MergedEdges(NamedTuple):
    """Arrays of :class:`hopper.models.merged.MergedRelations`.

    ``destination_starts`` and ``destination_segments`` are the edges from segments to destinations.
    """

    indices: Ints
    projected: Ints
    segment_starts: Ints
    segment_places: Ints
    bounds: Ints
    destination_starts: Ints
    destination_segments: Ints


def merge_edges(relations: Sequence[RelationEdges], destinations: int) -> MergedEdges:
    """Concatenate the edges of relations.

    Parameters
    ----------
    destinations: the number of destinations of all types.
    """
    indptrs = [relation.indptr for relation in relations]
    numbers = [(r.indptr.size, r.indices.size, *r[2:]) for r in relations]
    facts = np.array(numbers, np.int64).reshape(len(relations), 6)
    return MergedEdges(
        *_merge(
            np.concatenate(indptrs),
            np.concatenate([relation.indices for relation in relations]),
            facts,
            destinations,
        )
    )


@kernel(parallel=True)
def _merge(
    indptr: Ints, indices: Ints, facts: Ints, destinations: int
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]:
    count = facts.shape[0]
    pointers, edges = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    for r in range(count):
        pointers[r + 1] = pointers[r] + facts[r, 0]
        edges[r + 1] = edges[r] + facts[r, 1]
    bounds = np.zeros(count + 1, np.int64)
    rows, projected = np.empty(indices.size, np.int64), np.empty(indices.size, np.int64)
    for r in numba.prange(count):
        first_row, readers, first_projection = facts[r, 2], facts[r, 3], facts[r, 4]
        for e in range(edges[r], edges[r + 1]):
            rows[e] = indices[e] + first_row
            projected[e] = indices[e] * readers + first_projection
        segments_here = 0
        for p in range(pointers[r], pointers[r + 1] - 1):
            segments_here += indptr[p + 1] > indptr[p]
        bounds[r + 1] = segments_here
    for r in range(count):
        bounds[r + 1] += bounds[r]
    starts, segment_places = (
        np.empty(bounds[count] + 1, np.int64),
        np.empty(bounds[count], np.int64),
    )
    starts[bounds[count]] = indices.size
    for r in numba.prange(count):
        segment = bounds[r]
        for p in range(pointers[r], pointers[r + 1] - 1):
            if indptr[p + 1] > indptr[p]:
                starts[segment] = edges[r] + indptr[p]
                segment_places[segment] = facts[r, 5] + p - pointers[r]
                segment += 1
    # The segments of a destination are in the order of relations.
    ends = np.zeros(destinations + 1, np.int64)
    for destination in segment_places:
        ends[destination + 1] += 1
    for d in range(destinations):
        ends[d + 1] += ends[d]
    next_slot, segments = ends[:destinations].copy(), np.empty(segment_places.size, np.int64)
    for s in range(segment_places.size):
        segments[next_slot[segment_places[s]]] = s
        next_slot[segment_places[s]] += 1
    return rows, projected, starts, segment_places, bounds, ends, segments
