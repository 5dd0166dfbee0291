"""Lays the edges of relations behind one another by kernels in host memory (HiFuse, section 4.3).

Relations that are sampled in host memory are merged there, before they are copied to a device. Two
arrays are then copied, instead of three for each relation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cache_server.kernel import kernel
from hopper.graph.topology import Ids


def merge_edges(
    edges: Sequence[tuple[Ids, Ids]], firsts: Sequence[int], destinations: int
) -> tuple[Ids, Ids]:
    """Find the segments of the edges of relations, and those of each of ``destinations``, of all
    types.

    Edges are ``indptr`` [destinations + 1] and ``indices`` [edges] of each relation. ``firsts`` are
    its first destinations among those of all types.

    Returns one array, and the first segment of each relation, [relations + 1]. The array has the
    first edge of each segment [segments + 1], the destination of each segment [segments], and the
    edges from segments to destinations: ``indptr`` [destinations + 1] and ``indices`` [segments].
    """
    numbers = [
        (indptr.size, indices.size, first)
        for (indptr, indices), first in zip(edges, firsts, strict=True)
    ]
    facts = np.array(numbers, np.int64).reshape(len(edges), 3)
    return _merge(np.concatenate([indptr for indptr, _ in edges]), facts, destinations)


@kernel
def _merge(indptr: Ids, facts: Ids, destinations: int) -> tuple[Ids, Ids]:
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
