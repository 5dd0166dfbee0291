"""The neighbor lists of a relation, the draws from them, and the edges that draws exclude.

A draw depends on the node, the key and the node's list alone (docs/inside/draws.md), so a server
draws from its lists what a rank would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.kernels import (
    LATEST,
    REPLACEMENT,
    UNIFORM,
    WEIGHTED,
    WEIGHTED_REPLACEMENT,
    ListArrays,
    count_until,
    draw_edges,
    flag_labor,
    keys_of_rows,
    list_neighbors,
    take_flagged,
)
from cache_server.draws.spec import Drawn, ExcludedEdges, Method, SamplingSpec
from cache_server.kernel import read_only
from cache_server.sharded_array import ShardedArray
from cache_server.store.mapped_rows import read_rows_alone
from cache_server.store.read_ahead import read_ahead, read_ranges_ahead

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


@dataclass(frozen=True)
class StoredIds:
    """The global ids of a table whose rows, or of a type whose neighbor lists, are stored."""

    first: int
    stop: int
    ids: Ids | None = None
    """[n] int64, ascending: those in [``first``, ``stop``) that are stored; None = all"""

    @property
    def count(self) -> int:
        """The number of stored rows or lists."""
        return self.stop - self.first if self.ids is None else self.ids.size

    def all_ids(self) -> Ids:
        """Return [n] int64: the ids, ascending."""
        return np.arange(self.first, self.stop) if self.ids is None else self.ids

    def rows(self, wanted: Ids) -> Ids:
        """Return the local rows of global ids, arbitrary where none is stored."""
        if self.ids is not None:
            return np.searchsorted(self.ids, wanted)
        return wanted - self.first if self.first else wanted

    def find(self, wanted: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """Return :meth:`rows` of global ids, and whether each is stored."""
        rows = self.rows(wanted)
        if self.ids is None:
            return rows, (wanted >= self.first) & (wanted < self.stop)
        if not self.ids.size:
            return rows, np.zeros(wanted.size, np.bool_)
        return rows, np.take(self.ids, rows, mode="clip") == wanted

    def contains(self, wanted: Ids) -> NDArray[np.bool_]:
        """Return [n] bool: whether each global id is stored."""
        return self.find(wanted)[1]

    def pick(self, entries: Any) -> Any:
        """Return the entries of the stored ids, given those of all ids; views are as stored."""
        if self.ids is not None:
            return entries[self.ids]
        if isinstance(entries, ShardedArray):
            return entries.view(self.first, self.stop)
        return entries[self.first : self.stop]


class NeighborLists:
    """The neighbor lists of one relation, with the weights and times that draws need.

    ``indptr`` and ``indices`` are CSC, sources in global ids, lists of the ``stored`` destinations
    in order of their original ids. ``src_ids`` and ``dst_ids`` are [sources] and [destinations]
    original ids. By edge, ``cumulative_weights`` are int32 running sums within each list, and
    ``times`` and ``by_time`` are the ascending times of each list, and the positions of its edges
    in that order; None = edges have no weights, or are always there. Where mapped lists do not fit
    memory, alone or with others of ``together`` bytes, the pages of those drawn from are read at
    once.
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
        stored: StoredIds | None = None,
        together: int = 0,
    ) -> None:
        self.stored = StoredIds(0, indptr.size - 1) if stored is None else stored
        self.src_ids = src_ids
        sums = np.empty(0, np.int32) if cumulative_weights is None else cumulative_weights
        optional = (_NONE if array is None else array for array in (times, by_time))
        arrays = indptr, indices, sums, *optional
        self.arrays = ListArrays(*(read_only(np.asarray(array)) for array in arrays))
        self._originals = read_only(self.stored.pick(dst_ids))
        by_edge: list[NDArray[Any]] = [*self.arrays[1:]]
        self._alone = [array for array in by_edge if read_rows_alone(array, together)]
        self.is_weighted = cumulative_weights is not None

    def draw(
        self,
        nodes: Ids,
        spec: SamplingSpec,
        excluded: ExcludedEdges = NOTHING,
        until: Ids | None = None,
    ) -> Drawn:
        """Draw in-neighbors of nodes, [n] int64 global ids, whose lists are stored; for draws in
        time at [n] times ``until``, with ``excluded`` edges as :meth:`in_time` returns them."""
        lists, rows = self.arrays, self._rows(nodes)
        self._read_ahead(rows)
        if spec.method == "labor" and not spec.takes_all:
            bounds, listed = list_neighbors(lists.indptr, lists.indices, rows)
            flags = flag_labor(bounds, read_only(self.src_ids[listed]), spec.fanout, spec.key)
            return take_flagged(bounds, listed, flags)
        way = _WAYS.get(spec.method, UNIFORM)
        if (spec.takes_all and way != LATEST) or (way == LATEST and not lists.times.size):
            way = UNIFORM
        assert self.is_weighted or way not in (WEIGHTED, WEIGHTED_REPLACEMENT)
        moments = read_only(until) if until is not None and spec.in_time else _NONE
        skipped = excluded._replace(nodes=self._rows(excluded.nodes))
        keys = keys_of_rows(spec.key, self._originals, rows)
        return draw_edges(
            lists,
            rows,
            keys,
            moments,
            way,
            spec.fanout,
            ExcludedEdges(*map(read_only, skipped)),
        )

    def count_until(self, nodes: Ids, until: Ids) -> Ids:
        """Return [n] int64: how many in-edges of each node are there at its time."""
        arrays = self.arrays
        return count_until(arrays.indptr, arrays.times, self._rows(nodes), read_only(until))

    def count(self, nodes: Ids) -> Ids:
        """Return [n] int64: the number of in-edges of each node."""
        rows = self._rows(nodes)
        return self.arrays.indptr[rows + 1] - self.arrays.indptr[rows]

    def exclude(self, src: Ids, dst: Ids) -> ExcludedEdges:
        """Find all stored edges between pairs of nodes, given as [n] int64 global ids; pairs may
        repeat, and may have no edge, or several."""
        originals = self.src_ids[src]
        order = np.lexsort((originals, dst))
        src, dst, originals = src[order], dst[order], originals[order]
        is_new = np.ones(src.size, np.bool_)
        is_new[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
        src, dst, is_here = src[is_new], dst[is_new], self.stored.contains(dst[is_new])
        originals, rows = originals[is_new][is_here], self._rows(dst[is_here])
        starts, ends = self.arrays.indptr[rows], self.arrays.indptr[rows + 1]
        firsts = self._bisect(starts, ends, originals)
        counts = self._bisect(firsts, ends, originals + 1) - firsts
        nodes = np.repeat(dst[is_here], counts)
        before = np.cumsum(counts) - counts
        places = np.repeat(firsts - starts - before, counts) + np.arange(nodes.size)
        distinct, begins = np.unique(nodes, return_index=True)
        return ExcludedEdges(distinct, np.append(begins, nodes.size), places, src, dst)

    def in_time(self, excluded: ExcludedEdges) -> ExcludedEdges:
        """Return the same edges as places in lists that are in order of time."""
        if not self.arrays.by_time.size or not excluded.places.size:
            return excluded
        numbers, rows = np.arange(excluded.nodes.size) << 32, self._rows(excluded.nodes)
        bounds, positions = list_neighbors(self.arrays.indptr, self.arrays.by_time, rows)
        # The number of the list and the position in it, which ascend in what is excluded.
        edges = np.repeat(numbers, np.diff(bounds)) + positions
        skipped = np.repeat(numbers, np.diff(excluded.bounds)) + excluded.places
        nearest = np.take(skipped, np.searchsorted(skipped, edges), mode="clip")
        (found,) = np.nonzero(nearest == edges)
        return excluded._replace(places=found - np.repeat(bounds[:-1], np.diff(excluded.bounds)))

    def _read_ahead(self, rows: Ids) -> None:
        if not self._alone:
            return
        indptr = self.arrays.indptr
        read_ahead(indptr, rows)
        for array in self._alone:
            read_ranges_ahead(array, indptr[rows], indptr[rows + 1])

    def _rows(self, nodes: Ids) -> Ids:
        return read_only(self.stored.rows(nodes))

    def _bisect(self, low: Ids, high: Ids, originals: Ids) -> Ids:
        """Return [n] int64: the first edge of each range whose source has no smaller original id
        than the one given."""
        low, high = low.copy(), high.copy()
        while (open_ranges := np.flatnonzero(low < high)).size:
            middle = (low[open_ranges] + high[open_ranges]) // 2
            is_less = self.src_ids[self.arrays.indices[middle]] < originals[open_ranges]
            low[open_ranges[is_less]] = middle[is_less] + 1
            high[open_ranges[~is_less]] = middle[~is_less]
        return low
