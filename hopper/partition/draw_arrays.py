"""Write the arrays that draws by weight and time read, beside the edges of neighbour lists.

They are running sums of weights and alias tables (docs/inside/draws.md), and the times from which
edges may be seen (docs/howto/times.md).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cache_server.alias_table import write_tables
from cache_server.kernel import read_only
from hopper.graph import layout
from hopper.graph.array_file import create_array, release_pages
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import row_ranges
from hopper.graph.schema import Relation
from hopper.partition.time_order import order_by_time
from hopper.partition.weight_sums import add_up, to_units
from hopper.phases import Progress

Ids: TypeAlias = NDArray[np.int64]
EdgesOf = Callable[[int, int], tuple[Ids, Ids]]
"""Called with a range of rows; returns original source ids and edge ids of the edges into them."""


def write_draw_arrays(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the arrays of some neighbour lists.

    Parameters
    ----------
    folder: the folder of the directory, or of a server.
    indptr: [destinations + 1] int64, bounds of the lists; other destinations have empty ones.
    """
    indptr = read_only(indptr)
    if graph.schema.relations[relation].weighted:
        _write_weights(graph, folder, relation, indptr, edges_of)
    if graph.schema.is_timed(relation):
        _write_times(graph, folder, relation, indptr, edges_of)


def write_draw_arrays_into(
    graph: GraphDirectory,
    folder: Path,
    relation: Relation,
    destinations: NDArray[np.bool_] | None,
    progress: Progress,
) -> None:
    """Write the arrays of a relation whose nodes keep their order; progress advances by bytes.

    Parameters
    ----------
    destinations: [destinations] bool, whether to write each destination's list; None = all.
    """
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

    write_draw_arrays(graph, folder, relation, indptr, edges_of)
    progress.advance(int(indptr[-1]) * edge_bytes)


def _write_weights(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the running sums of weights, and the alias tables that are made of them."""
    file = layout.topology_file(folder, relation, "weight_sums")
    sums = create_array(file, np.int64, (int(indptr[-1]),))
    file = layout.topology_file(folder, relation, "alias_table")
    table = create_array(file, np.uint32, (int(indptr[-1]),))
    weights = graph.edge_weights(relation)
    largest = float(weights.max(initial=0.0))
    for first, last in row_ranges(indptr, 0, indptr.size - 1):
        list_weights = weights[edges_of(first, last)[1]]
        add_up(to_units(list_weights, largest), indptr, first, last, sums)
        write_tables(sums, indptr, first, last, table)
        release_pages(sums, table, weights)


def _write_times(
    graph: GraphDirectory, folder: Path, relation: Relation, indptr: Ids, edges_of: EdgesOf
) -> None:
    """Write the times within neighbour lists, earliest first, and the edges that they are of."""
    schema = graph.schema
    names: tuple[layout.StoredArray, ...] = ("times", "by_time")
    out = [
        create_array(layout.topology_file(folder, relation, name), np.int64, (int(indptr[-1]),))
        for name in names
    ]
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
        order_by_time(read_only(seen), indptr, first, last, *out)
        release_pages(*out)
