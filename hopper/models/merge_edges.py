"""Lays the edges of relations behind one another by kernels in host memory (HiFuse, section 4.3).

Relations that are sampled in host memory are merged there, before they are copied to a device. Two
arrays are then copied, instead of three for each relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel

Ints = NDArray[np.int64]


class Ends(NamedTuple):
    """Where the ends of a relation are among those of all types."""

    first_row: int
    """the index of the source type's first row among all rows"""
    first_projection: int
    """the index of the relation's first projection among those of all relations"""
    first_destination: int
    """the index of the destination type's first row among all destinations"""


class RelationEdges(NamedTuple):
    """The edges of one relation: ``indptr`` [destinations + 1] and ``indices`` [edges], rows of the
    source type."""

    indptr: Ints
    indices: Ints
    ends: Ends


def merge_edges(relations: Sequence[RelationEdges], destinations: int) -> tuple[Ints, Ints]:
    """Find the segments of the edges of relations, and those of each of ``destinations``, of all
    types.

    Returns one array, and the first segment of each relation, [relations + 1]. The array has the
    first edge of each segment [segments + 1], the destination of each segment [segments], and the
    edges from segments to destinations: ``indptr`` [destinations + 1] and ``indices`` [segments].
    """
    numbers = [(r.indptr.size, r.indices.size, r.ends.first_destination) for r in relations]
    facts = np.array(numbers, np.int64).reshape(len(relations), 3)
    return _merge(np.concatenate([r.indptr for r in relations]), facts, destinations)


@kernel
def _merge(indptr: Ints, facts: Ints, destinations: int) -> tuple[Ints, Ints]:
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
