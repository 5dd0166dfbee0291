"""Kernels of frontiers.

``discover`` gives drawn nodes their frontier rows. ``draw_hop_of_part`` draws from lists of which
only a part is here. Each thread writes its own rows only, so results depend neither on the number
of threads nor on their timing. ``discover`` runs on one thread: without branches it takes a
fraction of the draws' time, and every measured split over two threads took longer.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import draw_positions, node_key
from cache_server.draws.spec import DrawKey, Drawn
from cache_server.kernel import kernel

# The entry of a frontier table for a node that has no row yet.
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
    key: DrawKey,
) -> Drawn:
    """Draw from all in-edges as ``draw_edges`` does, and return the edges that are stored here.

    Of ``degrees`` edges in a whole list, those in the CSC are here, at the positions ``stored``,
    which ascend. Frontier and sources have global ids. Fanout -1 = all.
    """
    now, later, dependence, elapsed = key
    size = frontier.size
    starts = np.zeros(size + 1, np.int64)
    for i in range(size):
        degree = degrees[frontier[i]]
        starts[i + 1] = starts[i] + (degree if fanout < 0 else min(degree, fanout))
    numbers = np.empty(starts[size], np.int64)
    edges = np.empty(starts[size], np.int64)
    offsets = np.zeros(size + 1, np.int64)
    for i in numba.prange(size):
        node, start, stop = frontier[i], starts[i], starts[i + 1]
        of_node = node_key(now, later, dependence, elapsed, original_ids[node])
        draw_positions(of_node, degrees[node], stop - start, numbers[start:stop])
        first, last = indptr[node], indptr[node + 1]
        for j in range(start, stop):
            edge = first + np.searchsorted(stored[first:last], numbers[j])
            is_here = edge < last and stored[edge] == numbers[j]
            edges[j] = edge if is_here else -1
            offsets[i + 1] += is_here
    for i in range(size):
        offsets[i + 1] += offsets[i]
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        at = offsets[i]
        for j in range(starts[i], starts[i + 1]):
            if edges[j] >= 0:
                sources[at] = indices[edges[j]]
                positions[at] = numbers[j]
                at += 1
    return offsets, sources, positions


def keep_edges(drawn: Drawn, chosen: NDArray[np.bool_]) -> Drawn:
    """Return the drawn edges that are ``chosen`` ([edges] bool)."""
    offsets, sources, positions = drawn
    chosen_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(chosen, dtype=np.int64)))
    return chosen_before[offsets], sources[chosen], positions[chosen]


@kernel
def discover(
    sources: NDArray[np.int64], table: NDArray[np.int32], known: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give every source its frontier row: new nodes get rows from ``known`` on, in order of first
    appearance.

    ``table`` has the row of every known node, else ``UNSEEN``, and is updated. Returns [edges]
    rows, and the [new] ids.
    """
    rows = np.empty(sources.size, np.int64)
    new_nodes = np.empty(sources.size + 1, np.int64)
    new = 0
    for i in range(sources.size):
        # There is no branch here, since the processor could not predict it.
        node = sources[i]
        row = table[node]
        is_new = row == UNSEEN
        row = known + new if is_new else np.int64(row)
        table[node] = row
        new_nodes[new] = node
        rows[i] = row
        new += is_new
    return rows, new_nodes[:new].copy()
