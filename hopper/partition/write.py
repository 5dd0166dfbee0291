"""Write a partitioned directory: topology in global ids, and what each server alone needs.

Tables are streamed, and topology goes from map to map, so memory holds the two id maps of every
node type and little else, however large the graph.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.shard import TableSpec, write_manifest
from hopper.graph import layout
from hopper.graph.array_file import (
    array_bytes,
    create_array,
    named,
    release_pages,
    save_array,
)
from hopper.graph.directory import GraphDirectory
from hopper.graph.publish import unpublished
from hopper.graph.row_ranges import row_ranges
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.schema_json import write_schema
from hopper.graph.write import required_bytes
from hopper.partition.checksums import seal_directory
from hopper.partition.draw_arrays import write_draw_arrays
from hopper.partition.layouts import divide_columns, map_file, server_folder
from hopper.partition.relabel import Relabelling, count_cut, relabel_rows
from hopper.phases import Progress

_BYTES_AT_ONCE: Final = 16 << 20


@dataclass(frozen=True)
class EdgeShares:
    """How one relation's edges fell on the servers."""

    cut: int
    """edges whose ends live on different servers"""
    in_edges: NDArray[np.int64]
    """[servers] int64, edges into the nodes of each server"""


@contextmanager
def unpublished_partitions(out: Path, needed_bytes: int) -> Iterator[Path]:
    """As :func:`hopper.graph.publish.unpublished`, and what is written gets its checksums.

    Raises
    ------
    RequestError: ``out`` has content, or its disk has too little space.
    OSError: the disk is full all the same, or cannot be written; names a file.
    """
    with unpublished(out, needed_bytes) as work, named(out):
        yield work
        seal_directory(work)


def partitioned_bytes(schema: GraphSchema, servers: int, *, split: bool) -> int:
    """Bytes on disk that writing a partitioned directory takes: the graph's own, and two maps a
    node type.

    Parameters
    ----------
    split: whether :func:`hopper.partition.divide_topology.divide_topology` follows, for which a
        relation lies there twice; halos, which are not known yet, take more.
    """
    found = required_bytes(schema) + sum(16 * kind.count for kind in schema.node_types.values())
    for relation, kind in schema.relations.items():
        found += kind.count * layout.draw_bytes(schema, relation)
    if not split:
        return found
    twice, rows = 0, 0
    for relation, kind in schema.relations.items():
        twice = max(twice, 2 * array_bytes(np.int64, (kind.count,)))
        rows += array_bytes(np.int64, (schema.node_types[relation.dst].count + 1,))
    return found + twice + servers * rows


def write_maps(work: Path, maps: Mapping[str, Relabelling]) -> None:
    """Write both maps of every node type."""
    for node_type, each in maps.items():
        save_array(map_file(work, node_type, "original_ids"), each.original_ids)
        save_array(map_file(work, node_type, "global_ids"), each.global_ids)


def write_topology(
    graph: GraphDirectory,
    work: Path,
    relation: Relation,
    maps: Mapping[str, Relabelling],
    progress: Progress,
) -> EdgeShares:
    """Write one relation's CSC in global ids; neighbours stay in the order of original ids.

    Returns
    -------
    How the edges fell on the servers, for the description.
    """
    old = graph.topology(relation)
    src, dst = maps[relation.src], maps[relation.dst]

    def create(name: layout.TopologyArray, length: int) -> NDArray[Any]:
        array = create_array(layout.topology_file(work, relation, name), np.int64, (length,))
        return np.asarray(array)

    nodes, edges = dst.original_ids.size, old.indices.size
    in_degrees = create("in_degrees", nodes)
    in_degrees[:] = old.in_degrees[dst.original_ids]
    release_pages(in_degrees, old.in_degrees)
    out_degrees = create("out_degrees", src.original_ids.size)
    out_degrees[:] = old.out_degrees[src.original_ids]
    release_pages(out_degrees, old.out_degrees)
    indptr = create("indptr", nodes + 1)
    np.cumsum(np.diff(old.indptr)[dst.original_ids], out=indptr[1:])
    indices, edge_ids = create("indices", edges), create("edge_ids", edges)
    cut = 0
    for server in range(dst.offsets.size - 1):
        for first, last in row_ranges(indptr, *dst.offsets[server : server + 2].tolist()):
            relabel_rows(
                first,
                dst.original_ids[first:last],
                src.global_ids,
                np.asarray(old.indptr),
                np.asarray(old.indices),
                np.asarray(old.edge_ids),
                indptr,
                indices,
                edge_ids,
            )
            owned = int(src.offsets[server]), int(src.offsets[server + 1])
            cut += count_cut(first, last, indptr, indices, *owned)
            release_pages(old.indptr, old.indices, old.edge_ids, indptr, indices, edge_ids)
            progress.advance(int(indptr[last] - indptr[first]))

    def edges_of(first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        piece = slice(int(indptr[first]), int(indptr[last]))
        return src.original_ids[indices[piece]], edge_ids[piece]

    write_draw_arrays(graph, work, relation, indptr, edges_of)
    return EdgeShares(cut, np.diff(indptr[dst.offsets]))


def write_server(
    graph: GraphDirectory,
    work: Path,
    server: int,
    maps: Mapping[str, Relabelling],
    progress: Progress,
    *,
    by_dimension: bool = False,
) -> int:
    """Write one server's feature, label and edge feature rows and its ``shard.json``.

    Topology must have been written. Progress advances by bytes.

    Parameters
    ----------
    by_dimension: whether it stores all nodes, and some columns of their features.

    Returns
    -------
    Bytes of the server's feature rows (edge features included).
    """
    folder = server_folder(work, server)
    folder.mkdir()
    tables, feature_bytes = [], 0
    for node_type, each in maps.items():
        first, last = int(each.offsets[server]), int(each.offsets[server + 1])
        dim = graph.schema.node_types[node_type].feature_dim
        if by_dimension:
            first, last = 0, int(each.offsets[-1])
        rows = each.original_ids[first:last]
        if dim is not None:
            file = layout.features_file(folder, node_type)
            features = graph.features(node_type)
            if by_dimension:
                columns = divide_columns(dim, each.offsets.size - 1)[server]
                features = features[:, columns.first : columns.stop]
            feature_bytes += write_rows(features, rows, file, progress)
            tables.append(
                table_spec("features", node_type, file, folder, first, rows.size, features)
            )
        if node_type in graph.schema.labels:
            file = layout.labels_file(folder, node_type)
            labels = graph.labels(node_type)
            write_rows(labels, rows, file, progress)
            tables.append(table_spec("labels", node_type, file, folder, first, rows.size, labels))
    for relation, kind in graph.schema.relations.items():
        if kind.feature_dim is not None:
            own = maps[relation.dst].offsets[server : server + 2]
            first, edges = _edges_of(work, relation, own)
            file, rows = layout.edge_features_file(folder, relation), graph.edge_features(relation)
            feature_bytes += write_rows(rows, edges, file, progress)
            tables.append(
                table_spec("features", str(relation), file, folder, first, edges.size, rows)
            )
    write_manifest(folder, server, next(iter(maps.values())).offsets.size - 1, tables)
    return feature_bytes


def table_bytes(graph: GraphDirectory, copies: int = 1) -> int:
    """Bytes of all rows that :func:`write_server` copies, over all servers.

    Parameters
    ----------
    copies: of the labels.
    """
    schema = graph.schema
    tables = [graph.labels(name) for name in schema.labels if isinstance(name, str)] * copies
    tables += [graph.features(name) for name, kind in schema.node_types.items() if kind.feature_dim]
    tables += [graph.edge_features(r) for r, kind in schema.relations.items() if kind.feature_dim]
    return sum(table.nbytes for table in tables)


def copy_shared(graph: GraphDirectory, work: Path) -> None:
    """Write what is the same for every partition: ``graph.json``, the splits, the ends of links
    where edges are predicted, and what the source called those that predictions are of."""
    schema = graph.schema
    write_schema(work, schema)
    named = [layout.names_file(graph.path, each) for each in schema.root_types]
    tasks = schema.target_labels.tasks if schema.target_labels else ()
    for task in ("", *(name for name, _ in tasks)):
        named.append(layout.label_names_file(graph.path, schema.target, task))
    for file in filter(Path.is_file, named):
        copy = work / file.relative_to(graph.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    for each in schema.timed:
        # From when on edges are seen lies with the topology; these are predicted.
        is_predicted = schema.predicted == "edge" and each in schema.target_relations
        if isinstance(each, str) or is_predicted:
            file = layout.times_file(work, each)
            file.parent.mkdir(parents=True, exist_ok=True)
            save_array(file, graph.times(each))
    for name in graph.schema.splits:
        save_array(layout.split_file(work, name), graph.split(name))
        if graph.schema.target_relations:
            links = graph.links(name)
            save_array(
                layout.links_file(work, name), np.stack((links.relations, links.src, links.dst))
            )
            if links.labels is not None:
                save_array(layout.link_labels_file(work, name), links.labels)
            if links.times is not None:
                save_array(layout.link_times_file(work, name), links.times)


def _edges_of(
    work: Path, relation: Relation, rows: NDArray[np.int64]
) -> tuple[int, NDArray[np.int64]]:
    """The place in the CSC of the first in-edge of a range of global ids, and edge ids of all of
    them, in order of the CSC."""
    folder = layout.topology_file(work, relation, "indptr")
    start, stop = np.load(folder, mmap_mode="r", allow_pickle=False)[rows]
    file = layout.topology_file(work, relation, "edge_ids")
    if start == stop:
        return int(start), np.empty(0, np.int64)
    edge_ids: NDArray[np.int64] = np.load(file, mmap_mode="r", allow_pickle=False)[start:stop]
    return int(start), edge_ids


def write_rows(table: NDArray[Any], rows: NDArray[np.int64], file: Path, progress: Progress) -> int:
    """Write ``table[rows]`` in chunks; returns its bytes, by which progress advances."""
    out = create_array(file, table.dtype, (rows.size, *table.shape[1:]))
    row_bytes = table.dtype.itemsize * int(np.prod(table.shape[1:]))
    step = max(1, _BYTES_AT_ONCE // max(1, row_bytes))
    for first in range(0, rows.size, step):
        chosen = rows[first : first + step]
        out[first : first + step] = table[chosen]
        release_pages(table, out)
        progress.advance(chosen.size * row_bytes)
    return int(rows.size) * row_bytes


def table_spec(
    kind: str,
    node_type: str,
    file: Path,
    folder: Path,
    first_id: int,
    count: int,
    table: NDArray[Any],
) -> TableSpec:
    """The entry in ``shard.json`` of a table whose first row is of id ``first_id``."""
    return TableSpec(
        kind=kind,
        type=node_type,
        file=str(file.relative_to(folder)),
        first_id=first_id,
        count=count,
        dim=1 if table.ndim == 1 else int(table.shape[1]),
        dtype=table.dtype.name,
    )
