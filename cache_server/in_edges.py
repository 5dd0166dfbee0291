"""In-edges of nodes, and how neighbours are drawn among them: by the ranks that have them, and by
the server that has them, for others' ranks.

Specified in docs/draws.md: what is drawn for a node depends on the node, the key and its own
neighbour list, so whoever has the list draws the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest, ManifestError
from cache_server.hop_draw import BY_WEIGHT, METHODS, Drawn, HopDraw, ServerDraw
from cache_server.left_out import NOTHING, LeftOut, leave_out
from cache_server.neighbour_draw import draw_hop, draw_hop_without
from cache_server.source_draw import labor_flags, neighbour_lists, take_flagged
from cache_server.timed_draw import count_until, draw_until
from cache_server.weighted_draw import draw_by_weight, draw_with_replacement

Ids = NDArray[np.int64]
Lacking = tuple[Ids, Ids, Ids]
_NONE: Final = np.empty(0, np.int64)
_DRAWN_FROM: Final[dict[str, Any]] = {
    "weight_sums": np.int64,
    "alias_table": np.uint32,
    "times": np.int64,
    "by_time": np.int64,
}
"""arrays by edge that may be there, in the order of :class:`NeighbourLists`"""


@dataclass(frozen=True)
class NeighbourLists:
    """What neighbours are drawn from, of one relation.

    Attributes
    ----------
    indptr, indices: CSC, in global ids.
    src_ids, dst_ids: [sources] and [destinations] int64 original ids.
    weight_sums, alias_table: [edges] int64 and uint32 (docs/draws.md); None = no weights.
    times, by_time: [edges] int64, as of :func:`cache_server.timed_draw.draw_until`; None = edges
        are there always.
    """

    indptr: Ids
    indices: Ids
    src_ids: Ids
    dst_ids: Ids
    weight_sums: Ids | None = None
    alias_table: NDArray[np.uint32] | None = None
    times: Ids | None = None
    by_time: Ids | None = None

    def draw(
        self,
        nodes: Ids,
        how: HopDraw,
        lacking: Lacking | None = None,
        until: Ids | None = None,
    ) -> Drawn:
        """Draw the in-neighbours of some nodes.

        Parameters
        ----------
        nodes: [n] int64 global ids.
        lacking: destinations whose lists lack some edges, as of
            :func:`cache_server.neighbour_draw.draw_hop_without`; LABOR-0 takes none. In draws in
            time by the places that these have by time.
        until: [n] int64, the times of draws in time.
        """
        key = np.uint64(how.key)
        if how.in_time:
            return self._draw_until(nodes, until, how, lacking or NOTHING.arrays)
        if how.method == "labor" and not how.takes_all:
            bounds, listed = neighbour_lists(self.indptr, self.indices, nodes)
            flags = labor_flags(bounds, listed, self.src_ids, how.fanout, key)
            return take_flagged(bounds, listed, flags)
        asked = self.dst_ids, nodes, how.fanout, key
        if how.method == "uniform" or how.takes_all:
            if lacking is None:
                return draw_hop(self.indptr, self.indices, *asked)
            return draw_hop_without(self.indptr, self.indices, *asked, *lacking)
        lacking = lacking or NOTHING.arrays
        if how.method == "replacement":
            return draw_with_replacement(self.indptr, self.indices, *asked, *lacking)
        sums, table = self.weight_sums, self.alias_table
        assert sums is not None
        assert table is not None
        replace = how.method == "weighted_replacement"
        return draw_by_weight(self.indptr, self.indices, sums, table, *asked, *lacking, replace)

    def _draw_until(self, nodes: Ids, until: Ids | None, how: HopDraw, lacking: Lacking) -> Drawn:
        assert until is not None
        times, by_time = (_NONE if of is None else of for of in (self.times, self.by_time))
        return draw_until(
            *(self.indptr, self.indices, times, by_time, self.dst_ids, nodes, until),
            *(how.fanout, how.method == "recent", np.uint64(how.key)),
            *lacking,
        )

    def count_until(self, nodes: Ids, until: Ids) -> Ids:
        """[n] int64: how many in-edges some nodes have that are there at [n] times."""
        return count_until(self.indptr, _NONE if self.times is None else self.times, nodes, until)

    def leave_out(self, src: Ids, dst: Ids) -> LeftOut:
        """All edges between some pairs of nodes; parameters as of
        :func:`cache_server.left_out.leave_out`."""
        return leave_out(self.indptr, self.indices, self.src_ids, src, dst)


class InEdges:
    """The in-edges of a server's own nodes, of one relation.

    Parameters
    ----------
    relation: as ``src/rel/dst``. first, stop: global ids of the nodes. server: for errors.
    """

    def __init__(
        self, relation: str, lists: NeighbourLists, first: int, stop: int, server: int
    ) -> None:
        self._lists, self._first, self._stop = lists, first, stop
        self._name = f"in-edges of {relation} of server {server}"

    def check(self, asked: ServerDraw) -> None:
        """Refuse what cannot be drawn here.

        Raises
        ------
        BadRequest: names the field, what was expected and what came.
        """
        nodes, how, until = asked.nodes, asked.how, asked.until
        self._check_range("nodes", nodes)
        if how.method in BY_WEIGHT and self._lists.weight_sums is None:
            raise BadRequest(f"method: {self._name} have no weights to draw by")
        if until is None and how.in_time:
            raise BadRequest(f"times: method {how.method} wants one for each node, found none")
        if until is not None and not how.in_time:
            raise BadRequest(f"times: method {how.method} draws at no time, found {until.size}")
        if until is not None and until.size != nodes.size:
            raise BadRequest(
                f"times: expected one for each of {nodes.size} nodes, found {until.size}"
            )
        if asked.src.size != asked.dst.size:
            raise BadRequest(
                f"without_sources: expected one for each of {asked.dst.size} destinations, found "
                f"{asked.src.size}"
            )
        if asked.src.size and how.method == "labor":
            raise BadRequest("without_sources: method labor leaves no edges out; expected none")
        self._check_range("without_destinations", asked.dst)
        count = self._lists.src_ids.size
        outside = (asked.src < 0) | (asked.src >= count)
        if outside.any():
            raise BadRequest(
                f"without_sources: id {asked.src[outside][0]} is outside [0, {count}), the sources "
                f"of {self._name}"
            )

    def _check_range(self, field: str, ids: Ids) -> None:
        outside = (ids < self._first) | (ids >= self._stop)
        if outside.any():
            raise BadRequest(
                f"{field}: id {ids[outside][0]} is outside [{self._first}, {self._stop}), the "
                f"range of {self._name}"
            )

    def draw(self, asked: ServerDraw, edges: int) -> Iterator[tuple[Drawn, Ids]]:
        """Draw what :meth:`check` lets pass, in the calling thread alone: requests are drawn for at
        the same time.

        Yields
        ------
        For some nodes at a time, in their order, what is drawn, and, in draws in time, how many of
        their in-edges are there. About ``edges`` edges are looked at for it, or one node's where it
        has more.
        """
        numba.set_num_threads(1)
        lists, how, lacking = self._lists, asked.how, None
        if asked.src.size:
            found = lists.leave_out(asked.src, asked.dst)
            found = found.in_time(lists.indptr, lists.by_time) if how.in_time else found
            lacking = found.arrays
        for part in self._pieces(asked.nodes, how, edges):
            nodes = asked.nodes[part]
            until = None if asked.until is None else asked.until[part]
            drawn = lists.draw(nodes, how, lacking, until)
            yield drawn, _NONE if until is None else lists.count_until(nodes, until)

    def _pieces(self, nodes: Ids, how: HopDraw, edges: int) -> list[slice]:
        """Which of some nodes are drawn for at a time."""
        counts = self._lists.indptr[nodes + 1] - self._lists.indptr[nodes]
        if not how.takes_all and "replacement" in how.method:
            counts = np.full(nodes.size, how.fanout)
        elif not how.takes_all and how.method != "labor":
            counts = np.minimum(counts, how.fanout)
        ends, first, pieces = np.cumsum(counts + 1), 0, []
        while first < nodes.size:
            before = ends[first - 1] if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, before + edges, "right")))
            pieces.append(slice(first, stop))
            first = stop
        return pieces


def open_in_edges(
    partitioned: Path, server: int, offsets: dict[str, list[int]]
) -> dict[str, InEdges]:
    """Map the in-edges that lie in a server's folder, by relation (docs/partitions.md).

    Parameters
    ----------
    offsets: by node type, the first global id of every server, and the count.

    Raises
    ------
    ManifestError: a file is missing, or does not fit the others.
    """
    found = {}
    root = partitioned / f"server-{server}" / "topology"
    originals: dict[str, Ids] = {}
    for folder in sorted(path.parent for path in root.glob("*/*/*/indptr.npy")):
        src, _, dst = folder.relative_to(root).parts
        for each in (src, dst):
            if each not in offsets:
                raise ManifestError(f"{folder}: partition.json has no offsets of {each!r}")
            if each not in originals:
                file = partitioned / "maps" / each / "original_ids.npy"
                originals[each] = _map(file, np.int64, offsets[each][-1])
        indptr = _map(folder / "indptr.npy", np.int64, offsets[dst][-1] + 1)
        edges = int(indptr[-1])
        drawn_from = [(folder / f"{name}.npy", kind) for name, kind in _DRAWN_FROM.items()]
        lists = NeighbourLists(
            indptr,
            _map(folder / "indices.npy", np.int64, edges),
            originals[src],
            originals[dst],
            *(_map(file, kind, edges) if file.exists() else None for file, kind in drawn_from),
        )
        relation = "/".join(folder.relative_to(root).parts)
        first, stop = offsets[dst][server : server + 2]
        found[relation] = InEdges(relation, lists, first, stop, server)
        _compile(lists)
    return found


def _compile(lists: NeighbourLists) -> None:
    """Compile the kernels of all draws from some lists, before anybody waits for them."""
    found = lists.leave_out(_NONE, _NONE)
    for method in METHODS:
        if method in BY_WEIGHT and lists.weight_sums is None:
            continue
        for lacking in (None, found.arrays):
            lists.draw(_NONE, HopDraw(method, 1, 0), lacking, _NONE)
    lists.count_until(_NONE, _NONE)


def _map(file: Path, dtype: Any, count: int) -> NDArray[Any]:
    """[count], mapped."""
    try:
        # An empty file part cannot be mapped.
        array = np.load(file, mmap_mode="r" if count else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ManifestError(f"{file}: cannot be read: {error}") from error
    if array.dtype != dtype or array.shape != (count,):
        raise ManifestError(
            f"{file}: expected [{count}] {np.dtype(dtype)}, found {list(array.shape)} of "
            f"{array.dtype}"
        )
    return np.asarray(array)
