"""In-edges of nodes, and how neighbours are drawn among them: by the ranks that have them, and by
the server that has them, for others' ranks.

Specified in docs/draws.md: what is drawn for a node depends on the node, the key and its own
neighbour list, so whoever has the list draws the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest, ManifestError
from cache_server.hop_draw import BY_WEIGHT, METHODS, Drawn, HopDraw
from cache_server.neighbour_draw import draw_hop, draw_hop_without
from cache_server.source_draw import labor_flags, neighbour_lists, take_flagged
from cache_server.weighted_draw import draw_by_weight, draw_with_replacement

Ids = NDArray[np.int64]
Lacking = tuple[Ids, Ids, Ids]
_NONE: Final = np.empty(0, np.int64)
NOTHING_LACKS: Final[Lacking] = (_NONE, np.zeros(1, np.int64), _NONE)


@dataclass(frozen=True)
class NeighbourLists:
    """What neighbours are drawn from, of one relation.

    Attributes
    ----------
    indptr, indices: CSC, in global ids.
    src_ids, dst_ids: [sources] and [destinations] int64 original ids.
    weight_sums, alias_table: [edges] int64 and uint32 (docs/draws.md); None = no weights.
    """

    indptr: Ids
    indices: Ids
    src_ids: Ids
    dst_ids: Ids
    weight_sums: Ids | None = None
    alias_table: NDArray[np.uint32] | None = None

    def draw(self, nodes: Ids, how: HopDraw, lacking: Lacking | None = None) -> Drawn:
        """Draw the in-neighbours of some nodes.

        Parameters
        ----------
        nodes: [n] int64 global ids.
        lacking: destinations whose lists lack some edges, as of
            :func:`cache_server.neighbour_draw.draw_hop_without`; LABOR-0 takes none.
        """
        key = np.uint64(how.key)
        if how.method == "labor" and not how.takes_all:
            bounds, listed = neighbour_lists(self.indptr, self.indices, nodes)
            flags = labor_flags(bounds, listed, self.src_ids, how.fanout, key)
            return take_flagged(bounds, listed, flags)
        asked = self.dst_ids, nodes, how.fanout, key
        if how.method == "uniform" or how.takes_all:
            if lacking is None:
                return draw_hop(self.indptr, self.indices, *asked)
            return draw_hop_without(self.indptr, self.indices, *asked, *lacking)
        lacking = lacking or NOTHING_LACKS
        if how.method == "replacement":
            return draw_with_replacement(self.indptr, self.indices, *asked, *lacking)
        sums, table = self.weight_sums, self.alias_table
        assert sums is not None
        assert table is not None
        replace = how.method == "weighted_replacement"
        return draw_by_weight(self.indptr, self.indices, sums, table, *asked, *lacking, replace)


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

    def check(self, nodes: Ids, how: HopDraw) -> None:
        """Refuse what cannot be drawn here.

        Raises
        ------
        BadRequest: names the field, what was expected and what came.
        """
        outside = (nodes < self._first) | (nodes >= self._stop)
        if outside.any():
            raise BadRequest(
                f"nodes: id {nodes[outside][0]} is outside [{self._first}, {self._stop}), the "
                f"range of {self._name}"
            )
        if how.method in BY_WEIGHT and self._lists.weight_sums is None:
            raise BadRequest(f"method: {self._name} have no weights to draw by")

    def pieces(self, nodes: Ids, how: HopDraw, edges: int) -> list[slice]:
        """Which of some nodes are drawn for at a time, so that about ``edges`` edges are looked at,
        or one node's where it has more."""
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

    def draw(self, nodes: Ids, how: HopDraw) -> Drawn:
        """Draw for nodes that :meth:`check` lets pass, in the calling thread alone: requests are
        drawn for at the same time."""
        numba.set_num_threads(1)
        return self._lists.draw(nodes, how)


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
        weights = [(folder / "weight_sums.npy", np.int64), (folder / "alias_table.npy", np.uint32)]
        lists = NeighbourLists(
            indptr,
            _map(folder / "indices.npy", np.int64, edges),
            originals[src],
            originals[dst],
            *(_map(file, kind, edges) if file.exists() else None for file, kind in weights),
        )
        relation = "/".join(folder.relative_to(root).parts)
        first, stop = offsets[dst][server : server + 2]
        found[relation] = InEdges(relation, lists, first, stop, server)
        # Kernels are compiled before anybody waits for them.
        for method in METHODS:
            if method not in BY_WEIGHT or lists.weight_sums is not None:
                lists.draw(_NONE, HopDraw(method, 1, 0))
    return found


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
