"""The numba kernels of sampling: expand a frontier, then name what it found.

``draw_hop`` draws the neighbours of every destination, ``discover`` turns their ids into frontier
rows. Threads write only rows of their own, so the result depends neither on their number nor on
their timing.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb, draw_positions

# Frontier tables hold the row of a node, or one of these.
UNSEEN: Final = -1
_RUN: Final = 128  # destinations drawn before their neighbours are fetched
_SLOT_BITS: Final = 4  # ids are dealt to threads in runs of 16, so that threads share no cache line


@numba.njit(cache=True, nogil=True, parallel=True)
def draw_hop(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    original_ids: NDArray[np.int64],
    frontier: NDArray[np.int64],
    fanout: int,
    key: np.uint64,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
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
    for i in numba.prange(size):
        # Nothing but loads here, so that many of them are under way at once.
        node = frontier[i]
        degree = indptr[node + 1] - indptr[node]
        offsets[i + 1] = degree if fanout < 0 else min(degree, fanout)
        keys[i] = absorb(key, np.uint64(original_ids[node]))
    for i in range(size):
        offsets[i + 1] += offsets[i]
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for run in numba.prange((size + _RUN - 1) // _RUN):
        begin, end = run * _RUN, min((run + 1) * _RUN, size)
        for i in range(begin, end):
            start, stop = offsets[i], offsets[i + 1]
            degree = indptr[frontier[i] + 1] - indptr[frontier[i]]
            draw_positions(keys[i], degree, stop - start, positions[start:stop])
        for i in range(begin, end):
            first = indptr[frontier[i]]
            for j in range(offsets[i], offsets[i + 1]):
                sources[j] = indices[first + positions[j]]
    return offsets, sources, positions


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
    fresh = np.empty(sources.size, np.int64)
    found = 0
    for i in range(sources.size):
        node = sources[i]
        row = table[node]
        if row == UNSEEN:
            row = np.int32(known + found)
            table[node] = row
            fresh[found] = node
            found += 1
        rows[i] = row
    return rows, fresh[:found].copy()


@numba.njit(cache=True, nogil=True, parallel=True)
def discover_parallel(
    sources: NDArray[np.int64], table: NDArray[np.int32], known: int, slots: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """:func:`discover` on ``slots`` threads (a power of two): the same result.

    Each thread reads every source but touches the table only for the ids of its own slot. Until
    rows are known, entry -2 - i stands for "first seen at edge i", so a hop may have at most
    2**31 - 2 edges.
    """
    size = sources.size
    rows = np.empty(size, np.int64)
    for slot in numba.prange(slots):
        for i in range(size):
            node = sources[i]
            if (node >> _SLOT_BITS) & (slots - 1) == slot:
                row = np.int64(table[node])
                if row == UNSEEN:
                    row = np.int64(-2 - i)
                    table[node] = np.int32(row)
                rows[i] = row
    new_rows = np.empty(size, np.int32)
    fresh = np.empty(size, np.int64)
    found = 0
    for i in range(size):
        if rows[i] == -2 - i:
            new_rows[i] = known + found
            fresh[found] = sources[i]
            found += 1
    for i in numba.prange(size):
        if rows[i] < 0:
            rows[i] = new_rows[-2 - rows[i]]
    for i in numba.prange(found):
        table[fresh[i]] = known + i
    return rows, fresh[:found].copy()


@numba.njit(cache=True, nogil=True, parallel=True)
def forget(nodes: NDArray[np.int64], table: NDArray[np.int32]) -> None:
    """Set the table entries of these nodes back to ``UNSEEN``."""
    for i in numba.prange(nodes.size):
        table[nodes[i]] = UNSEEN
