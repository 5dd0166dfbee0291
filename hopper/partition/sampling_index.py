"""Write the arrays that draws by weight and in time read, beside the edges of neighbor lists.

They are running sums of weights (docs/inside/draws.md), and the times from which edges may be seen
(docs/howto/times.md).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel, read_only
from hopper.graph import layout
from hopper.graph.array_file import create_array, release_pages
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import row_ranges
from hopper.graph.schema import Relation
from hopper.timing.phases import Progress

Ids: TypeAlias = NDArray[np.int64]
_BY_TIME: Final[tuple[layout.StoredArray, ...]] = ("times", "by_time")
EdgesOf = Callable[[int, int], tuple[Ids, Ids]]
"""Called with a range of rows; returns original source ids and edge ids of the edges into them."""


def write_sampling_index(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the arrays of neighbor lists within [destinations + 1] bounds to the folder of the
    directory, or of a server."""
    indptr = read_only(indptr)
    if graph.schema.relations[relation].weighted:
        _write_weights(graph, folder, relation, indptr, edges_of)
    if graph.schema.is_timed(relation):
        _write_times(graph, folder, relation, indptr, edges_of)


def write_sampling_index_into(
    graph: GraphDirectory,
    folder: Path,
    relation: Relation,
    destinations: NDArray[np.bool_] | None,
    progress: Progress,
) -> None:
    """Write the arrays of a relation whose nodes keep their order, of the lists of some
    destinations ([destinations] bool; None = all); progress advances by bytes."""
    edge_bytes = layout.draw_bytes(graph.schema, relation)
    if not edge_bytes:
        return
    topology = graph.topology(relation)
    counts = np.diff(topology.indptr)
    if destinations is not None:
        counts[~destinations] = 0
    indptr = np.concatenate(([0], np.cumsum(counts)))

    def edges_of(first: int, last: int) -> tuple[Ids, Ids]:
        shifts = np.repeat(topology.indptr[first:last] - indptr[first:last], counts[first:last])
        edges = np.arange(indptr[first], indptr[last]) + shifts
        sources, edge_ids = topology.indices[edges], topology.edge_ids[edges]
        release_pages(topology.indptr, topology.indices, topology.edge_ids)
        return sources, edge_ids

    write_sampling_index(graph, folder, relation, indptr, edges_of)
    progress.advance(int(indptr[-1]) * edge_bytes)


def _write_weights(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the running sums of weights."""
    file = layout.topology_file(folder, relation, "cumulative_weights")
    sums = create_array(file, np.int32, (int(indptr[-1]),))
    weights = graph.edge_weights(relation)
    largest = float(weights.max(initial=0.0))
    for first, last in row_ranges(indptr, 0, indptr.size - 1):
        list_weights = weights[edges_of(first, last)[1]]
        bounds = indptr[first : last + 1]
        sums[bounds[0] : bounds[-1]] = add_up_weights(list_weights, largest, bounds - bounds[0])
        release_pages(sums, weights)


def add_up_weights(weights: NDArray[np.float32], largest: float, bounds: Ids) -> NDArray[np.int32]:
    """Return [edges] int32: running sums of weights, in whole units, within neighbor lists with
    [lists + 1] bounds; ``largest`` is the relation's largest weight."""
    degrees = np.diff(bounds)
    fine = np.maximum(1, np.floor(weights.astype(np.float64) / largest * 2.0**32)).astype(np.uint64)
    of_list = np.repeat(_sum_lists(fine, bounds), degrees)
    units = fine * np.repeat((2**31 - 1 - degrees).astype(np.uint64), degrees) // of_list
    # Sums may wrap over many lists, but differences of them are exact.
    sums = np.cumsum(np.maximum(units, 1).astype(np.int64))
    before = np.concatenate((np.zeros(1, np.int64), sums))[bounds[:-1]]
    return (sums - np.repeat(before, degrees)).astype(np.int32)


def _sum_lists(values: NDArray[np.uint64], bounds: Ids) -> NDArray[np.uint64]:
    """Return [lists] uint64: the sum of each list's values."""
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values)))
    return sums[bounds[1:]] - sums[bounds[:-1]]


def _write_times(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the times within neighbor lists, earliest first, and the edges that they are of."""
    schema = graph.schema
    files = (layout.topology_file(folder, relation, name) for name in _BY_TIME)
    out = [create_array(file, np.int64, (int(indptr[-1]),)) for file in files]
    of_edges = graph.times(relation) if schema.relations[relation].timed else None
    is_timed = schema.node_types[relation.src].timed
    of_sources = graph.times(relation.src) if is_timed else None
    for first, last in row_ranges(indptr, 0, indptr.size - 1):
        sources, edge_ids = edges_of(first, last)
        candidates = [
            times[ids]
            for times, ids in ((of_edges, edge_ids), (of_sources, sources))
            if times is not None
        ]
        # An edge may be seen only from its source's time on.
        seen = np.asarray(candidates[0] if len(candidates) == 1 else np.maximum(*candidates))
        _order_by_time(read_only(seen), indptr, first, last, *out)
        release_pages(*out)


@kernel
def _order_by_time(seen: Ids, indptr: Ids, first: int, last: int, times: Ids, by_time: Ids) -> None:
    """Sort the times of the lists in [``first``, ``last``), ties by position, into ``times``, and
    the edges' positions into ``by_time``."""
    begin = indptr[first]
    for node in range(first, last):
        start, stop = indptr[node], indptr[node + 1]
        list_times = seen[start - begin : stop - begin]
        order = np.argsort(list_times, kind="mergesort")
        for rank in range(stop - start):
            times[start + rank] = list_times[order[rank]]
            by_time[start + rank] = order[rank]
