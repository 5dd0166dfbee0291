"""Kernels of draws from the edges that are there at a time. Specified in docs/inside/draws.md."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb, draw_positions
from cache_server.hop_draw import Drawn
from cache_server.kernel import kernel
from cache_server.neighbour_draw import lacks

Ids = NDArray[np.int64]


@kernel
def _count(indptr: Ids, times: Ids, node: np.int64, until: np.int64) -> np.int64:
    """Return how many in-edges of a node are there at a time."""
    first, last = indptr[node], indptr[node + 1]
    if not times.size:
        return last - first
    return np.searchsorted(times[first:last], until, side="right")


@kernel(parallel=True)
def count_until(indptr: Ids, times: Ids, nodes: Ids, until: Ids) -> Ids:
    """Return [n] int64: how many in-edges of each node are there at its time.

    Parameters are those of :func:`draw_until`.
    """
    counts = np.empty(nodes.size, np.int64)
    for i in numba.prange(nodes.size):
        counts[i] = _count(indptr, times, nodes[i], until[i])
    return counts


@kernel(parallel=True)
def draw_until(
    indptr: Ids,
    indices: Ids,
    times: Ids,
    by_time: Ids,
    original_ids: Ids,
    frontier: Ids,
    until: Ids,
    fanout: int,
    recent: bool,
    key: np.uint64,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
) -> Drawn:
    """Draw neighbours that are there at a time (docs/inside/draws.md, "Draws in time").

    Parameters
    ----------
    indptr, indices: CSC of the relation.
    times, by_time: [edges] int64, the ascending times of each list, and the positions of its edges
        in that order; both empty if edges have no times and are always there.
    original_ids: [destinations] int64, original id of every destination.
    frontier, until: [n] int64, destinations to expand, and their roots' times.
    fanout: neighbours a destination, -1 = all.
    recent: whether the latest edges are taken instead of a draw.
    key: key of (seed, epoch, iteration, hop, relation).
    nodes, bounds, places: edges that may not be drawn, as of
        :func:`cache_server.neighbour_draw.draw_hop_without`, but with places in order of time.

    Returns
    -------
    [n + 1] int64 offsets, [edges] int64 sources and positions in the destination's neighbour list.
    """
    size = frontier.size
    offsets = np.zeros(size + 1, np.int64)
    left = np.empty(size, np.int64)
    for i in numba.prange(size):
        left[i] = _count(indptr, times, frontier[i], until[i])
        begin, end = lacks(frontier[i], nodes, bounds)
        left[i] -= np.searchsorted(places[begin:end], left[i])
        offsets[i + 1] = left[i] if fanout < 0 else min(left[i], fanout)
    for i in range(size):
        offsets[i + 1] += offsets[i]
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        start, stop, first = offsets[i], offsets[i + 1], indptr[frontier[i]]
        begin, end = lacks(frontier[i], nodes, bounds)
        if recent and times.size:
            for j in range(start, stop):
                positions[j] = left[i] - 1 - (j - start)
        else:
            node_key = absorb(key, np.uint64(original_ids[frontier[i]]))
            version_key = absorb(node_key, np.uint64(until[i]))
            draw_positions(version_key, left[i], stop - start, positions[start:stop])
        for j in range(start, stop):
            place = positions[j]
            for k in range(begin, end):
                # Convert a place among the remaining edges to one in the whole list.
                place += place >= places[k]
            positions[j] = by_time[first + place] if times.size else place
            sources[j] = indices[first + positions[j]]
    return offsets, sources, positions
