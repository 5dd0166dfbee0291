"""The in-edges that one server stores, and the draws that it is asked to make from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draws.neighbor_lists import NOTHING, NeighborLists, StoredIds
from cache_server.draws.spec import (
    BY_WEIGHT,
    METHODS,
    WITH_REPLACEMENT,
    DrawKey,
    Drawn,
    SamplingRequest,
    SamplingSpec,
)
from cache_server.errors import BadRequest, ManifestError
from cache_server.store.npy import ID_DTYPES, map_array, map_original_ids

Ids = NDArray[np.int64]
_NONE: Final = np.empty(0, np.int64)
_OPTIONAL: Final = {"cumulative_weights": np.int32, "times": np.int64, "by_time": np.int64}
"""optional arrays by edge and their dtypes"""


class ShardTopology:
    """The lists of a server's nodes in one relation, which is named as ``src/rel/dst``."""

    def __init__(self, relation: str, lists: NeighborLists, server: int) -> None:
        self._lists, self._name = lists, f"in-edges of {relation} of server {server}"

    def check(self, request: SamplingRequest) -> None:
        """Refuse a draw that cannot be made here, by a BadRequest that names the field."""
        nodes, spec, until, src, dst = request
        own = self._lists.stored.first, self._lists.stored.stop
        self._check_ids("nodes", nodes, *own, "the range of")
        if spec.method in BY_WEIGHT and not self._lists.is_weighted:
            raise BadRequest(f"method: {self._name} have no weights to draw by")
        if until is None and spec.in_time:
            raise BadRequest(f"times: method {spec.method} wants one for each node, found none")
        if until is not None and not spec.in_time:
            raise BadRequest(f"times: method {spec.method} draws at no time, found {until.size}")
        if until is not None and until.size != nodes.size:
            raise BadRequest(
                f"times: expected one for each of {nodes.size} nodes, found {until.size}"
            )
        if src.size != dst.size:
            raise BadRequest(
                f"without_sources: expected one for each of {dst.size} destinations, found "
                f"{src.size}"
            )
        if src.size and spec.method == "labor":
            raise BadRequest("without_sources: method labor leaves no edges out; expected none")
        self._check_ids("without_destinations", dst, *own, "the range of")
        self._check_ids("without_sources", src, 0, self._lists.src_ids.size, "the sources of")

    def _check_ids(self, field: str, ids: Ids, first: int, stop: int, what: str) -> None:
        outside = (ids < first) | (ids >= stop)
        if outside.any():
            raise BadRequest(
                f"{field}: id {ids[outside][0]} is outside [{first}, {stop}), {what} {self._name}"
            )

    def draw(self, request: SamplingRequest, edges: int) -> Iterator[tuple[Drawn, Ids]]:
        """Yield, for pieces of the nodes of a checked request, for which about ``edges`` edges are
        read: the neighbors, and, for draws in time, how many in-edges of each node are there."""
        # Other requests are answered at the same time.
        numba.set_num_threads(1)
        lists, spec, excluded = self._lists, request.spec, NOTHING
        if request.src.size:
            excluded = lists.exclude(request.src, request.dst)
            excluded = lists.in_time(excluded) if spec.in_time else excluded
        for part in self._pieces(request.nodes, spec, edges):
            nodes = request.nodes[part]
            until = None if request.until is None else request.until[part]
            drawn = lists.draw(nodes, spec, excluded, until)
            yield drawn, _NONE if until is None else lists.count_until(nodes, until)

    def _pieces(self, nodes: Ids, spec: SamplingSpec, edges: int) -> Iterator[slice]:
        """Cut nodes into pieces of about ``edges`` edges, and one node at least."""
        counts = self._lists.count(nodes)
        if not spec.takes_all and spec.method in WITH_REPLACEMENT:
            counts = np.full(nodes.size, spec.fanout)
        elif not spec.takes_all and spec.method != "labor":
            counts = np.minimum(counts, spec.fanout)
        ends, first = np.cumsum(counts + 1), 0
        while first < nodes.size:
            before = ends[first - 1] if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, before + edges, "right")))
            yield slice(first, stop)
            first = stop


def open_topology(
    partitioned: Path, server: int, offsets: dict[str, list[int]]
) -> dict[str, ShardTopology]:
    """Map the in-edges of a server's nodes, by relation; ManifestError if files do not fit.

    ``offsets`` are, by node type, the first global id of every server, then the number of nodes.
    Other servers' original ids are mapped when LABOR-0, or edges that are left out, read them.
    """
    opened = {}
    root = partitioned / f"server-{server}" / "topology"
    originals = {
        name: map_original_ids(partitioned, name, bounds) for name, bounds in offsets.items()
    }
    files = ("indptr", "indices", *_OPTIONAL)
    together = sum(f.stat().st_size for name in files for f in root.glob(f"*/*/*/{name}.npy"))
    for folder in sorted(path.parent for path in root.glob("*/*/*/indptr.npy")):
        src, _, dst = folder.relative_to(root).parts
        for node_type in (src, dst):
            if node_type not in offsets:
                raise ManifestError(f"{folder}: partition.json has no offsets of {node_type!r}")
        first, stop = offsets[dst][server : server + 2]
        indptr = map_array(folder / "indptr.npy", np.int64, (stop - first + 1,))
        edges = int(indptr[-1])
        optional: dict[str, Any] = {
            name: map_array(file, dtype, (edges,))
            for name, dtype in _OPTIONAL.items()
            if (file := folder / f"{name}.npy").exists()
        }
        neighbor_lists = NeighborLists(
            indptr,
            map_array(folder / "indices.npy", ID_DTYPES, (edges,)),
            originals[src],
            originals[dst],
            **optional,
            stored=StoredIds(first, stop),
            together=together,
        )
        relation = "/".join(folder.relative_to(root).parts)
        opened[relation] = ShardTopology(relation, neighbor_lists, server)
        _compile(neighbor_lists)
    return opened


def _compile(lists: NeighborLists) -> None:
    """Compile the kernels of all draws from these lists, so that no request waits for that."""
    lists.in_time(lists.exclude(_NONE, _NONE))
    for method in METHODS:
        if lists.is_weighted or method not in BY_WEIGHT:
            lists.draw(_NONE, SamplingSpec(method, 1, DrawKey(np.uint64(0))), until=_NONE)
    lists.count_until(_NONE, _NONE)
