"""Kernels that draw neighbours uniformly without replacement.

Each thread writes its own rows only, so results depend neither on the number of threads nor on
their timing. Specified in docs/inside/draws.md.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb, draw_positions
from cache_server.hop_draw import Drawn
from cache_server.kernel import kernel


@kernel(parallel=True)
def draw_hop(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    original_ids: NDArray[np.int64],
    frontier: NDArray[np.int64],
    fanout: int,
    key: np.uint64,
) -> Drawn:
    """Draw the neighbours of a frontier (docs/inside/draws.md).

    Parameters
    ----------
    indptr, indices: CSC of the relation.
    original_ids: [destinations] int64, original id of every destination.
    frontier: [n] int64, destinations to expand.
    fanout: neighbours a destination, -1 = all.
    key: key of (seed, epoch, iteration, hop, relation).

    Returns
    -------
    [n + 1] int64 offsets, [edges] int64 source ids and [edges] int64 positions in the
    destination's neighbour list.
    """
    size = frontier.size
    offsets = np.empty(size + 1, np.int64)
    offsets[0] = 0
    keys = np.empty(size, np.uint64)
    firsts = np.empty(size, np.int64)
    degrees = np.empty(size, np.int64)
    # Each pass has one kind of random access and nothing that depends on it, so that many loads run
    # at once. Profiled, this takes a third of the time of a single pass over destinations.
    for i in numba.prange(size):
        node = frontier[i]
        firsts[i] = indptr[node]
        degrees[i] = indptr[node + 1] - firsts[i]
        offsets[i + 1] = degrees[i] if fanout < 0 else min(degrees[i], fanout)
        keys[i] = absorb(key, np.uint64(original_ids[node]))
    for i in range(size):
        offsets[i + 1] += offsets[i]
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        start, stop = offsets[i], offsets[i + 1]
        draw_positions(keys[i], degrees[i], stop - start, positions[start:stop])
        first = firsts[i]
        for j in range(start, stop):
            sources[j] = first + positions[j]
    for j in numba.prange(sources.size):
        sources[j] = indices[sources[j]]
    return offsets, sources, positions


@kernel
def lacks(
    node: np.int64, nodes: NDArray[np.int64], bounds: NDArray[np.int64]
) -> tuple[np.int64, np.int64]:
    """Return the range of ``places`` that the list of a node lacks: its first and last bound.

    The binary search is written out, since profiled ``np.searchsorted`` takes several times as long
    here.

    Parameters
    ----------
    nodes, bounds: as of :func:`draw_hop_without`.
    """
    low, high = np.int64(0), np.int64(nodes.size)
    while low < high:
        middle = (low + high) >> 1
        if nodes[middle] < node:
            low = middle + 1
        else:
            high = middle
    if low < nodes.size and nodes[low] == node:
        return bounds[low], bounds[low + 1]
    return np.int64(0), np.int64(0)


@kernel(parallel=True)
def draw_hop_without(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    original_ids: NDArray[np.int64],
    frontier: NDArray[np.int64],
    fanout: int,
    key: np.uint64,
    nodes: NDArray[np.int64],
    bounds: NDArray[np.int64],
    places: NDArray[np.int64],
) -> Drawn:
    """Draw the neighbours of a frontier as :func:`draw_hop` does, but leave some edges out.

    Parameters
    ----------
    nodes: [m] int64, ascending: the destinations whose lists lack some edges.
    bounds: [m + 1] int64: where each destination's part of ``places`` begins.
    places: [k] int64, ascending for each destination: the positions that may not be drawn.

    Returns
    -------
    As :func:`draw_hop`; positions are those in the whole lists.
    """
    size = frontier.size
    offsets = np.empty(size + 1, np.int64)
    offsets[0] = 0
    begins = np.empty(size, np.int64)
    ends = np.empty(size, np.int64)
    for i in numba.prange(size):
        node = frontier[i]
        begins[i], ends[i] = lacks(node, nodes, bounds)
        degree = indptr[node + 1] - indptr[node] - (ends[i] - begins[i])
        offsets[i + 1] = degree if fanout < 0 else min(degree, fanout)
    for i in range(size):
        offsets[i + 1] += offsets[i]
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        node, start, stop = frontier[i], offsets[i], offsets[i + 1]
        first = indptr[node]
        degree = indptr[node + 1] - first - (ends[i] - begins[i])
        node_key = absorb(key, np.uint64(original_ids[node]))
        draw_positions(node_key, degree, stop - start, positions[start:stop])
        for j in range(start, stop):
            for k in range(begins[i], ends[i]):
                # Convert a position among the remaining edges to one in the whole list.
                positions[j] += positions[j] >= places[k]
            sources[j] = indices[first + positions[j]]
    return offsets, sources, positions
