"""The numba kernels of sampling: expand a frontier, then name what it found.

``draw_hop`` draws the neighbours of every destination (``draw_hop_of_part`` those of them that are
here, where some edges are elsewhere), ``discover`` turns their ids into frontier rows. Threads
write only rows of their own, so the result depends neither on their number nor on their timing.
``discover`` stays on one thread: without branches it takes a fraction of the draws' time, and each
split of it over two threads that was measured took longer.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb, draw_positions, kernel

Drawn = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""[destinations + 1] offsets, [edges] source ids and [edges] positions in the neighbour lists"""

# Frontier tables hold the row of a node, or one of these.
UNSEEN: Final = -1


@numba.njit(cache=True, nogil=True, parallel=True)
def draw_hop(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    original_ids: NDArray[np.int64],
    frontier: NDArray[np.int64],
    fanout: int,
    key: np.uint64,
) -> Drawn:
    """Draw the neighbours of a frontier (design.md, invariant 1; docs/draws.md).

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
    # Each pass has one kind of random access and nothing that waits for it, so that many loads are
    # under way at once: profiled, this is three times as fast as one pass over destinations.
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
    """Which places are those that the list of a node lacks: from where, and up to where.

    Searched by hand: profiled, ``np.searchsorted`` takes several times as long here.

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


@numba.njit(cache=True, nogil=True, parallel=True)
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
    """What :func:`draw_hop` draws, with the same keys, of lists that lack some neighbours.

    Positions are those in the whole lists.

    Parameters
    ----------
    nodes: [m] int64, ascending: the destinations whose lists lack some.
    bounds, places: [m + 1] and [k] int64: which positions, ascending for each.
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
        own = absorb(key, np.uint64(original_ids[node]))
        draw_positions(own, degree, stop - start, positions[start:stop])
        for j in range(start, stop):
            for k in range(begins[i], ends[i]):
                # Those that are left close ranks.
                positions[j] += positions[j] >= places[k]
            sources[j] = indices[first + positions[j]]
    return offsets, sources, positions


@numba.njit(cache=True, nogil=True, parallel=True)
def draw_hop_of_part(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    stored: NDArray[np.int64],
    degrees: NDArray[np.int64],
    original_ids: NDArray[np.int64],
    frontier: NDArray[np.int64],
    fanout: int,
    key: np.uint64,
) -> Drawn:
    """What :func:`draw_hop` draws among all edges, as far as it is here.

    Parameters
    ----------
    stored: [edges] int64, where each edge stands among all of its destination's; ascending.
    degrees: [destinations] int64, how many in-edges a destination has in all.
    """
    size = frontier.size
    starts = np.zeros(size + 1, np.int64)
    for i in range(size):
        degree = degrees[frontier[i]]
        starts[i + 1] = starts[i] + (degree if fanout < 0 else min(degree, fanout))
    drawn = np.empty(starts[size], np.int64)
    places = np.empty(starts[size], np.int64)
    offsets = np.zeros(size + 1, np.int64)
    for i in numba.prange(size):
        node, start, stop = frontier[i], starts[i], starts[i + 1]
        own = absorb(key, np.uint64(original_ids[node]))
        draw_positions(own, degrees[node], stop - start, drawn[start:stop])
        first, last = indptr[node], indptr[node + 1]
        for j in range(start, stop):
            place = first + np.searchsorted(stored[first:last], drawn[j])
            found = place < last and stored[place] == drawn[j]
            places[j] = place if found else -1
            offsets[i + 1] += found
    for i in range(size):
        offsets[i + 1] += offsets[i]
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        at = offsets[i]
        for j in range(starts[i], starts[i + 1]):
            if places[j] >= 0:
                sources[at] = indices[places[j]]
                positions[at] = drawn[j]
                at += 1
    return offsets, sources, positions


def keep(drawn: Drawn, chosen: NDArray[np.bool_]) -> Drawn:
    """Some of the edges that were drawn.

    Parameters
    ----------
    chosen: [edges] bool.
    """
    offsets, sources, positions = drawn
    kept = np.concatenate((np.zeros(1, np.int64), np.cumsum(chosen, dtype=np.int64)))
    return kept[offsets], sources[chosen], positions[chosen]


@numba.njit(cache=True, nogil=True)
def discover(
    sources: NDArray[np.int64], table: NDArray[np.int32], known: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give every source its frontier row; new nodes get rows in order of first appearance.

    Parameters
    ----------
    sources: [edges] int64 node ids.
    table: [nodes] int32, row of every known node, ``UNSEEN`` otherwise; updated.
    known: number of rows in use.

    Returns
    -------
    [edges] int64 rows, and [new] int64 ids of the new nodes: the i-th has row ``known + i``.
    """
    rows = np.empty(sources.size, np.int64)
    fresh = np.empty(sources.size + 1, np.int64)
    found = 0
    for i in range(sources.size):
        # Without a branch: whether a node is new is a coin toss to the processor.
        node = sources[i]
        row = table[node]
        is_new = row == UNSEEN
        row = known + found if is_new else np.int64(row)
        table[node] = row
        fresh[found] = node
        rows[i] = row
        found += is_new
    return rows, fresh[:found].copy()


@numba.njit(cache=True, nogil=True)
def forget(nodes: NDArray[np.int64], table: NDArray[np.int32]) -> None:
    """Set the table entries of these nodes back to ``UNSEEN``."""
    for i in range(nodes.size):
        table[nodes[i]] = UNSEEN
