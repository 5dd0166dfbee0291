"""In-edges of nodes, and the draws of neighbours from them.

Ranks draw from the lists that they have. A server draws from its own lists for ranks elsewhere. A
draw depends on the node, the key and the node's neighbour list alone (docs/inside/draws.md), so
both draw the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest, ManifestError
from cache_server.hop_draw import BY_WEIGHT, METHODS, Drawn, HopDraw, ServerDraw
from cache_server.kernel import read_only
from cache_server.left_out import NOTHING, LeftOut, leave_out
from cache_server.neighbour_draw import draw_hop, draw_hop_without
from cache_server.source_draw import labor_flags, neighbour_lists, take_flagged
from cache_server.timed_draw import count_until, draw_until
from cache_server.weighted_draw import draw_by_weight, draw_with_replacement

Ids = NDArray[np.int64]
Lacking = tuple[Ids, Ids, Ids]
_NONE: Final = read_only(np.empty(0, np.int64))
_OPTIONAL: Final[dict[str, Any]] = {
    "weight_sums": np.int64,
    "alias_table": np.uint32,
    "times": np.int64,
    "by_time": np.int64,
}
"""optional arrays by edge and their dtypes, in the order of :class:`NeighbourLists`"""


@dataclass(frozen=True)
class NeighbourLists:
    """The neighbour lists of one relation, with the weights and times that draws need.

    Attributes
    ----------
    indptr, indices: CSC, in global ids.
    src_ids, dst_ids: [sources] and [destinations] int64 original ids.
    weight_sums, alias_table: [edges] int64 and uint32 (docs/inside/draws.md); None = no weights.
    times, by_time: [edges] int64, as of :func:`cache_server.timed_draw.draw_until`; None = edges
        have no times and are always there.
    """

    indptr: Ids
    indices: Ids
    src_ids: Ids
    dst_ids: Ids
    weight_sums: Ids | None = None
    alias_table: NDArray[np.uint32] | None = None
    times: Ids | None = None
    by_time: Ids | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            array = getattr(self, field.name)
            if array is not None:
                object.__setattr__(self, field.name, read_only(array))

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
        how: the method, fanout and key.
        lacking: edges that may not be drawn, as ``nodes``, ``bounds`` and ``places`` of
            :func:`cache_server.neighbour_draw.draw_hop_without`; None = none. Draws in time take
            places in order of time (:meth:`LeftOut.in_time`). LABOR-0 takes None alone.
        until: [n] int64 times, for draws in time.
        """
        key, nodes = np.uint64(how.key), read_only(nodes)
        if how.in_time:
            return self._draw_until(nodes, until, how, lacking or NOTHING.arrays)
        if how.method == "labor" and not how.takes_all:
            bounds, listed = neighbour_lists(self.indptr, self.indices, nodes)
            flags = labor_flags(bounds, listed, self.src_ids, how.fanout, key)
            return take_flagged(bounds, listed, flags)
        frontier = self.dst_ids, nodes, how.fanout, key
        if how.method == "uniform" or how.takes_all:
            if lacking is None:
                return draw_hop(self.indptr, self.indices, *frontier)
            return draw_hop_without(self.indptr, self.indices, *frontier, *lacking)
        lacking = lacking or NOTHING.arrays
        if how.method == "replacement":
            return draw_with_replacement(self.indptr, self.indices, *frontier, *lacking)
        sums, table = self.weight_sums, self.alias_table
        assert sums is not None
        assert table is not None
        replace = how.method == "weighted_replacement"
        return draw_by_weight(self.indptr, self.indices, sums, table, *frontier, *lacking, replace)

    def _draw_until(self, nodes: Ids, until: Ids | None, how: HopDraw, lacking: Lacking) -> Drawn:
        assert until is not None
        times = _NONE if self.times is None else self.times
        by_time = _NONE if self.by_time is None else self.by_time
        return draw_until(
            *(self.indptr, self.indices, times, by_time, self.dst_ids, nodes, read_only(until)),
            *(how.fanout, how.method == "recent", np.uint64(how.key)),
            *lacking,
        )

    def count_until(self, nodes: Ids, until: Ids) -> Ids:
        """Return [n] int64: how many in-edges of each node are there at its time."""
        times = _NONE if self.times is None else self.times
        return count_until(self.indptr, times, read_only(nodes), read_only(until))

    def leave_out(self, src: Ids, dst: Ids) -> LeftOut:
        """Find all edges between pairs of nodes; see :func:`cache_server.left_out.leave_out`."""
        return leave_out(self.indptr, self.indices, self.src_ids, src, dst)


class InEdges:
    """The in-edges of a server's nodes in one relation, and the draws that it is asked to make.

    Parameters
    ----------
    relation: as ``src/rel/dst``.
    first, stop: the range of the nodes' global ids.
    server: index of the server, for errors.
    """

    def __init__(
        self, relation: str, lists: NeighbourLists, first: int, stop: int, server: int
    ) -> None:
        self._lists, self._first, self._stop = lists, first, stop
        self._name = f"in-edges of {relation} of server {server}"

    def check(self, draw: ServerDraw) -> None:
        """Refuse a draw that cannot be made here.

        Raises
        ------
        BadRequest: names the field, what was expected and what came.
        """
        nodes, how, until = draw.nodes, draw.how, draw.until
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
        if draw.src.size != draw.dst.size:
            raise BadRequest(
                f"without_sources: expected one for each of {draw.dst.size} destinations, found "
                f"{draw.src.size}"
            )
        if draw.src.size and how.method == "labor":
            raise BadRequest("without_sources: method labor leaves no edges out; expected none")
        self._check_range("without_destinations", draw.dst)
        count = self._lists.src_ids.size
        outside = (draw.src < 0) | (draw.src >= count)
        if outside.any():
            raise BadRequest(
                f"without_sources: id {draw.src[outside][0]} is outside [0, {count}), the sources "
                f"of {self._name}"
            )

    def _check_range(self, field: str, ids: Ids) -> None:
        outside = (ids < self._first) | (ids >= self._stop)
        if outside.any():
            raise BadRequest(
                f"{field}: id {ids[outside][0]} is outside [{self._first}, {self._stop}), the "
                f"range of {self._name}"
            )

    def draw(self, draw: ServerDraw, edges: int) -> Iterator[tuple[Drawn, Ids]]:
        """Make a draw that has passed :meth:`check`, some nodes at a time.

        It uses the calling thread alone, since other requests are answered at the same time.

        Parameters
        ----------
        edges: about how many edges to read for each piece. A piece has one node at least.

        Yields
        ------
        For each piece, in the order of the nodes: the neighbours, and, for draws in time, how many
        in-edges of each node are there.
        """
        numba.set_num_threads(1)
        lists, how, lacking = self._lists, draw.how, None
        if draw.src.size:
            left_out = lists.leave_out(draw.src, draw.dst)
            if how.in_time:
                left_out = left_out.in_time(lists.indptr, lists.by_time)
            lacking = left_out.arrays
        for part in self._pieces(draw.nodes, how, edges):
            nodes = draw.nodes[part]
            until = None if draw.until is None else draw.until[part]
            drawn_lists = lists.draw(nodes, how, lacking, until)
            yield drawn_lists, _NONE if until is None else lists.count_until(nodes, until)

    def _pieces(self, nodes: Ids, how: HopDraw, edges: int) -> list[slice]:
        """Cut nodes into pieces, for each of which about ``edges`` edges are read."""
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
    """Map the in-edges in a server's folder, by relation.

    Parameters
    ----------
    offsets: by node type, the first global id of every server, then the number of nodes.

    Raises
    ------
    ManifestError: a file is missing, or does not fit the others.
    """
    opened = {}
    root = partitioned / f"server-{server}" / "topology"
    originals: dict[str, Ids] = {}
    for folder in sorted(path.parent for path in root.glob("*/*/*/indptr.npy")):
        src, _, dst = folder.relative_to(root).parts
        for node_type in (src, dst):
            if node_type not in offsets:
                raise ManifestError(f"{folder}: partition.json has no offsets of {node_type!r}")
            if node_type not in originals:
                file = partitioned / "maps" / node_type / "original_ids.npy"
                originals[node_type] = _map(file, np.int64, offsets[node_type][-1])
        indptr = _map(folder / "indptr.npy", np.int64, offsets[dst][-1] + 1)
        edges = int(indptr[-1])
        optional = [(folder / f"{name}.npy", dtype) for name, dtype in _OPTIONAL.items()]
        lists = NeighbourLists(
            indptr,
            _map(folder / "indices.npy", np.int64, edges),
            originals[src],
            originals[dst],
            *(_map(file, dtype, edges) if file.exists() else None for file, dtype in optional),
        )
        relation = "/".join(folder.relative_to(root).parts)
        first, stop = offsets[dst][server : server + 2]
        opened[relation] = InEdges(relation, lists, first, stop, server)
        _compile(lists)
    return opened


def _compile(lists: NeighbourLists) -> None:
    """Compile the kernels of all draws from these lists, so that no request waits for that."""
    nothing = lists.leave_out(_NONE, _NONE)
    for method in METHODS:
        if method in BY_WEIGHT and lists.weight_sums is None:
            continue
        for lacking in (None, nothing.arrays):
            lists.draw(_NONE, HopDraw(method, 1, 0), lacking, _NONE)
    lists.count_until(_NONE, _NONE)


def _map(file: Path, dtype: Any, count: int) -> NDArray[Any]:
    """Map an array of a file and check that it is [count] of ``dtype``."""
    try:
        # An empty array cannot be mapped.
        array = np.load(file, mmap_mode="r" if count else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ManifestError(f"{file}: cannot be read: {error}") from error
    if array.dtype != dtype or array.shape != (count,):
        raise ManifestError(
            f"{file}: expected [{count}] {np.dtype(dtype)}, found {list(array.shape)} of "
            f"{array.dtype}"
        )
    return np.asarray(array)
