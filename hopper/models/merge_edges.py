"""Edges of relations laid behind one another, by one kernel in host memory (HiFuse, section 4.3).

Relations that are sampled there are merged there, before anything is copied to a device: six arrays
are copied then, and not three for each relation.
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
    """The edges of one relation, and where their ends lie among those of all.

    Attributes
    ----------
    indptr: [destinations + 1] int64. indices: [edges] int64, rows of the source type.
    first_row: of the source type, among all rows.
    readers: relations from the source type. first_projection: among all that relations have of
        their own, that of the type's first row and this relation.
    first_destination: of the type of destinations, among those of all types.
    """

    indptr: Ints
    indices: Ints
    first_row: int
    readers: int
    first_projection: int
    first_destination: int


class MergedEdges(NamedTuple):
    """As of :class:`hopper.models.merged.MergedRelations`; ``destination_starts`` and
    ``destination_segments`` are the pattern from segments to destinations."""

    indices: Ints
    projected: Ints
    segment_starts: Ints
    segment_places: Ints
    bounds: Ints
    destination_starts: Ints
    destination_segments: Ints


def merge_edges(relations: Sequence[RelationEdges], destinations: int) -> MergedEdges:
    """Lay edges of relations behind one another.

    Parameters
    ----------
    destinations: of all types.
    """
    indptrs = [each.indptr for each in relations]
    numbers = [(each.indptr.size, each.indices.size, *each[2:]) for each in relations]
    facts = np.array(numbers, np.int64).reshape(len(relations), 6)
    return MergedEdges(
        *_merge(
            np.concatenate(indptrs),
            np.concatenate([each.indices for each in relations]),
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
        met = 0
        for p in range(pointers[r], pointers[r + 1] - 1):
            met += indptr[p + 1] > indptr[p]
        bounds[r + 1] = met
    for r in range(count):
        bounds[r + 1] += bounds[r]
    starts, places = np.empty(bounds[count] + 1, np.int64), np.empty(bounds[count], np.int64)
    starts[bounds[count]] = indices.size
    for r in numba.prange(count):
        segment = bounds[r]
        for p in range(pointers[r], pointers[r + 1] - 1):
            if indptr[p + 1] > indptr[p]:
                starts[segment] = edges[r] + indptr[p]
                places[segment] = facts[r, 5] + p - pointers[r]
                segment += 1
    # A destination's segments, in order of relation.
    ends = np.zeros(destinations + 1, np.int64)
    for place in places:
        ends[place + 1] += 1
    for d in range(destinations):
        ends[d + 1] += ends[d]
    at, segments = ends[:destinations].copy(), np.empty(places.size, np.int64)
    for s in range(places.size):
        segments[at[places[s]]] = s
        at[places[s]] += 1
    return rows, projected, starts, places, bounds, ends, segments
