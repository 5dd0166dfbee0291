"""The numba kernels of frontiers: name what draws found.

``discover`` turns drawn ids into frontier rows; ``draw_hop_of_part`` draws where some edges are
elsewhere. Threads write only rows of their own, so the result depends neither on their number nor
on their timing.
``discover`` stays on one thread: without branches it takes a fraction of the draws' time, and each
split of it over two threads that was measured took longer.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb, draw_positions
from cache_server.hop_draw import Drawn
from cache_server.kernel import kernel

# Frontier tables hold the row of a node, or one of these.
UNSEEN: Final = -1


@kernel(parallel=True)
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


@kernel
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


@kernel
def forget(nodes: NDArray[np.int64], table: NDArray[np.int32]) -> None:
    """Set the table entries of these nodes back to ``UNSEEN``."""
    for i in range(nodes.size):
        table[nodes[i]] = UNSEEN
