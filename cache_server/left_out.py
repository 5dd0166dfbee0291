"""Edges that a draw must leave out, such as those that would reveal what an iteration predicts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel, read_only

Ids = NDArray[np.int64]
_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class LeftOut:
    """Edges of one relation that draws leave out, as places in their destinations' lists.

    Attributes
    ----------
    nodes: [m] int64, ascending: the destinations of these edges.
    bounds: [m + 1] int64: where each destination's places begin in ``places``.
    places: [k] int64, ascending for each destination.
    src, dst: [n] int64 global ids, ascending by destination: the distinct pairs of nodes that these
        edges join. They include pairs whose destination's list is on another server.
    """

    nodes: Ids
    bounds: Ids
    places: Ids
    src: Ids = field(default_factory=_NONE.copy)
    dst: Ids = field(default_factory=_NONE.copy)

    @property
    def arrays(self) -> tuple[Ids, Ids, Ids]:
        """``nodes``, ``bounds`` and ``places``, as kernels take them."""
        return self.nodes, self.bounds, self.places

    def in_time(self, indptr: Ids, by_time: Ids | None) -> LeftOut:
        """Return the same edges as places in lists ordered by time.

        Parameters
        ----------
        indptr, by_time: as of :func:`cache_server.timed_draw.draw_until`.
        """
        if by_time is None or not self.places.size:
            return self
        return replace(self, places=_sort_by_time(indptr, by_time, *self.arrays))


NOTHING: Final = LeftOut(_NONE, np.zeros(1, np.int64), _NONE)


def leave_out(indptr: Ids, indices: Ids, original_ids: Ids, src: Ids, dst: Ids) -> LeftOut:
    """Find all edges between pairs of nodes, parallel edges included.

    Parameters
    ----------
    indptr, indices: CSC, in global ids. Destinations of other servers have empty lists.
    original_ids: [sources] int64, original id of every global id; lists are in their order.
    src, dst: [n] int64 global ids of the pairs. Repeats, and pairs without an edge, are allowed.
    """
    indptr, indices, original_ids = (
        read_only(np.asarray(array)) for array in (indptr, indices, original_ids)
    )
    order = np.lexsort((original_ids[src], dst))
    src, dst = src[order], dst[order]
    is_new = np.ones(src.size, np.bool_)
    is_new[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    src, dst = src[is_new], dst[is_new]
    counts = np.empty(src.size, np.int64)
    firsts = np.empty(src.size, np.int64)
    _find_pairs(indptr, indices, original_ids, src, dst, firsts, counts)
    nodes = np.repeat(dst, counts)
    starts = np.cumsum(counts) - counts
    places = np.repeat(firsts, counts) + np.arange(nodes.size) - np.repeat(starts, counts)
    distinct, begins = np.unique(nodes, return_index=True)
    return LeftOut(distinct, np.append(begins, nodes.size).astype(np.int64), places, src, dst)


@kernel
def _sort_by_time(indptr: Ids, by_time: Ids, nodes: Ids, bounds: Ids, places: Ids) -> Ids:
    """Convert places in lists by original id to places in lists by time, ascending for each."""
    places_by_time = np.empty_like(places)
    for i in range(nodes.size):
        first, at = indptr[nodes[i]], bounds[i]
        positions = places[bounds[i] : bounds[i + 1]]
        for place in range(indptr[nodes[i] + 1] - first):
            position = by_time[first + place]
            nearest = np.searchsorted(positions, position)
            if nearest < positions.size and positions[nearest] == position:
                places_by_time[at] = place
                at += 1
    return places_by_time


@kernel
def _find_pairs(
    indptr: Ids, indices: Ids, original_ids: Ids, src: Ids, dst: Ids, firsts: Ids, counts: Ids
) -> None:
    """Write each pair's first place in its destination's list, and its number of edges."""
    for i in range(src.size):
        first, last = indptr[dst[i]], indptr[dst[i] + 1]
        source_id = original_ids[src[i]]
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            if original_ids[indices[middle]] < source_id:
                low = middle + 1
            else:
                high = middle
        firsts[i] = low - first
        while low < last and indices[low] == src[i]:
            low += 1
        counts[i] = low - first - firsts[i]
