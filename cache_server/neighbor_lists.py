"""The neighbor lists of a relation, the draws from them, and the edges that draws exclude.

Ranks draw from the lists that they have. A server draws from its own lists for ranks elsewhere. A
draw depends on the node, the key and the node's list alone (docs/inside/draws.md), so both draw the
same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw_kernels import (
    LATEST,
    REPLACEMENT,
    UNIFORM,
    WEIGHTED,
    WEIGHTED_REPLACEMENT,
    ListArrays,
    count_until,
    draw_edges,
    flag_labor,
    list_neighbors,
    take_flagged,
)
from cache_server.kernel import kernel, read_only
from cache_server.sampling_spec import Drawn, ExcludedEdges, Method, SamplingSpec

Ids = NDArray[np.int64]
_NONE: Final = read_only(np.empty(0, np.int64))
_WAYS: Final[dict[Method, int]] = {
    "uniform": UNIFORM,
    "temporal": UNIFORM,
    "recent": LATEST,
    "replacement": REPLACEMENT,
    "weighted": WEIGHTED,
    "weighted_replacement": WEIGHTED_REPLACEMENT,
}


NOTHING: Final = ExcludedEdges(_NONE, read_only(np.zeros(1, np.int64)), _NONE, _NONE, _NONE)


class NeighborLists:
    """The neighbor lists of one relation, with the weights and times that draws need.

    Parameters
    ----------
    indptr, indices: CSC, in global ids. Lists are in order of the sources' original ids.
    src_ids, dst_ids: [sources] and [destinations] int64 original ids.
    cumulative_weights: [edges] int32, running sums of weights within each list; None = no weights.
    times, by_time: [edges] int64, the ascending times of each list, and the positions of its edges
        in that order; None = edges have no times and are always there.
    """

    def __init__(
        self,
        indptr: Ids,
        indices: Ids,
        src_ids: Ids,
        dst_ids: Ids,
        cumulative_weights: NDArray[np.int32] | None = None,
        times: Ids | None = None,
        by_time: Ids | None = None,
    ) -> None:
        sums = np.empty(0, np.int32) if cumulative_weights is None else cumulative_weights
        optional = (_NONE if array is None else array for array in (times, by_time))
        arrays = (indptr, indices, src_ids, dst_ids, sums, *optional)
        self.arrays = ListArrays(*(read_only(np.asarray(array)) for array in arrays))
        self.is_weighted = cumulative_weights is not None

    def draw(
        self,
        nodes: Ids,
        spec: SamplingSpec,
        excluded: ExcludedEdges = NOTHING,
        until: Ids | None = None,
    ) -> Drawn:
        """Draw the in-neighbors of some nodes.

        Parameters
        ----------
        nodes: [n] int64 global ids.
        excluded: edges that may not be drawn; for draws in time as :meth:`in_time` returns them.
            LABOR-0 excludes none.
        until: [n] int64 times, for draws in time.
        """
        lists, nodes = self.arrays, read_only(nodes)
        if spec.method == "labor" and not spec.takes_all:
            bounds, listed = list_neighbors(lists.indptr, lists.indices, nodes)
            flags = flag_labor(bounds, listed, lists.src_ids, spec.fanout, spec.key)
            return take_flagged(bounds, listed, flags)
        way = _WAYS.get(spec.method, UNIFORM)
        if (spec.takes_all and way != LATEST) or (way == LATEST and not lists.times.size):
            way = UNIFORM
        assert self.is_weighted or way not in (WEIGHTED, WEIGHTED_REPLACEMENT)
        moments = read_only(until) if until is not None and spec.in_time else _NONE
        excluded = ExcludedEdges(*map(read_only, excluded))
        return draw_edges(lists, nodes, moments, way, spec.fanout, spec.key, excluded)

    def count_until(self, nodes: Ids, until: Ids) -> Ids:
        """Return [n] int64: how many in-edges of each node are there at its time."""
        indptr, times = self.arrays.indptr, self.arrays.times
        return count_until(indptr, times, read_only(nodes), read_only(until))

    def exclude(self, src: Ids, dst: Ids) -> ExcludedEdges:
        """Find all edges between pairs of nodes, parallel edges included.

        Parameters
        ----------
        src, dst: [n] int64 global ids of the pairs. Repeats, and pairs without an edge, are
            allowed.
        """
        order = np.lexsort((self.arrays.src_ids[src], dst))
        src, dst = src[order], dst[order]
        is_new = np.ones(src.size, np.bool_)
        is_new[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
        src, dst = src[is_new], dst[is_new]
        firsts, counts = _find_pairs(self.arrays, src, dst)
        nodes = np.repeat(dst, counts)
        starts = np.cumsum(counts) - counts
        places = np.repeat(firsts, counts) + np.arange(nodes.size) - np.repeat(starts, counts)
        distinct, begins = np.unique(nodes, return_index=True)
        return ExcludedEdges(distinct, np.append(begins, nodes.size), places, src, dst)

    def in_time(self, excluded: ExcludedEdges) -> ExcludedEdges:
        """Return the same edges as places in lists that are in order of time."""
        if not self.arrays.by_time.size or not excluded.places.size:
            return excluded
        excluded = ExcludedEdges(*map(read_only, excluded))
        return excluded._replace(places=_sort_by_time(self.arrays, excluded))


@kernel
def _sort_by_time(lists: ListArrays, excluded: ExcludedEdges) -> Ids:
    """Convert places in lists by original id to places in lists by time, ascending for each."""
    nodes, bounds, places, _, _ = excluded
    places_by_time = np.empty(places.size, np.int64)
    for i in range(nodes.size):
        first, at = lists.indptr[nodes[i]], bounds[i]
        positions = places[bounds[i] : bounds[i + 1]]
        for place in range(lists.indptr[nodes[i] + 1] - first):
            position = lists.by_time[first + place]
            nearest = np.searchsorted(positions, position)
            if nearest < positions.size and positions[nearest] == position:
                places_by_time[at] = place
                at += 1
    return places_by_time


@kernel
def _find_pairs(lists: ListArrays, src: Ids, dst: Ids) -> tuple[Ids, Ids]:
    """Return each pair's first place in its destination's list, and its number of edges."""
    firsts, counts = np.empty(src.size, np.int64), np.empty(src.size, np.int64)
    for i in range(src.size):
        first, last = lists.indptr[dst[i]], lists.indptr[dst[i] + 1]
        source_id = lists.src_ids[src[i]]
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            if lists.src_ids[lists.indices[middle]] < source_id:
                low = middle + 1
            else:
                high = middle
        firsts[i] = low - first
        while low < last and lists.indices[low] == src[i]:
            low += 1
        counts[i] = low - first - firsts[i]
    return firsts, counts
