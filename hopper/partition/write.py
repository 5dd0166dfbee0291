"""Write a partitioned directory: topology in global ids, and what each server alone needs.

Tables and topology are streamed, and maps of ids lie in files, so memory holds a few pieces of an
array, however large the graph. A server's part is built by itself, from the graph and files that
all parts share, so servers' parts can be built anywhere and in any order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.store.manifest import TableSpec, write_manifest
from hopper.graph import layout
from hopper.graph.array_file import (
    array_bytes,
    create_array,
    iter_pieces,
    name_in_errors,
    open_array,
    open_range_writer,
    release_pages,
    save_array,
)
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import edges_at_once, memory_budget, row_ranges
from hopper.graph.publish import atomic_output_dir
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.schema_json import write_schema
from hopper.graph.write import required_bytes
from hopper.partition.by_dimension import divide_columns
from hopper.partition.checksums import seal_directory
from hopper.partition.file_names import server_folder
from hopper.partition.relabel import relabel_edges
from hopper.partition.sampling_index import write_sampling_index
from hopper.partition.whole_topology import open_indptr
from hopper.partition.workers import Construction
from hopper.phases import Progress

_BY_EDGE: Final[tuple[layout.StoredArray, ...]] = ("indices", "edge_ids")


@contextmanager
def unpublished_partitions(out: Path, needed_bytes: int) -> Iterator[Path]:
    """Do what :func:`hopper.graph.publish.atomic_output_dir` does, and add checksums of all files.

    Raises
    ------
    RequestError: ``out`` has content, or its disk has too little space.
    OSError: the disk is full all the same, or cannot be written; names a file.
    """
    with atomic_output_dir(out, needed_bytes) as work, name_in_errors(out):
        yield work
        seal_directory(work)


def partitioned_bytes(schema: GraphSchema, servers: int, *, split: bool) -> int:
    """Return the bytes on disk that writing a partitioned directory takes: the graph's own, and two
    maps a node type.

    Parameters
    ----------
    split: whether :func:`hopper.partition.divide_topology.divide_topology` follows, for which a
        relation lies there twice; halos, which are not known yet, take more.
    """
    nbytes = required_bytes(schema) + sum(16 * kind.count for kind in schema.node_types.values())
    for relation, kind in schema.relations.items():
        # Ids of edges are written as int64.
        nbytes += kind.count * (8 + layout.draw_bytes(schema, relation))
    if not split:
        return nbytes
    twice, rows = 0, 0
    for relation, kind in schema.relations.items():
        twice = max(twice, 2 * array_bytes(np.int64, (kind.count,)))
        rows += array_bytes(np.int64, (schema.node_types[relation.dst].count + 1,))
    return nbytes + twice + servers * rows


def lay_out_topology(construction: Construction, relation: Relation) -> None:
    """Write where every list of a relation stands in global ids, and degrees; the edges are zeros
    until :func:`fill_topology` writes them."""
    old, work = construction.graph.topology(relation), construction.work
    src, dst = (construction.maps[node_type] for node_type in (relation.src, relation.dst))

    def create(name: layout.TopologyArray, length: int) -> NDArray[Any]:
        return create_array(layout.topology_file(work, relation, name), np.int64, (length,))

    for out, degrees, nodes in (
        (create("in_degrees", dst.original_ids.size), old.in_degrees, dst),
        (create("out_degrees", src.original_ids.size), old.out_degrees, src),
    ):
        for first, ids in iter_pieces(nodes.original_ids):
            out[first : first + ids.size] = degrees[ids]
        release_pages(out, degrees)
    indptr, last = create("indptr", dst.original_ids.size + 1), 0
    for first, ids in iter_pieces(dst.original_ids):
        bounds = indptr[first + 1 : first + 1 + ids.size]
        np.cumsum(old.indptr[ids + 1] - old.indptr[ids], out=bounds)
        bounds += last
        last = int(bounds[-1])
    release_pages(indptr, old.indptr)
    create("indices", old.indices.size)
    create("edge_ids", old.indices.size)


def fill_topology(
    construction: Construction, progress: Progress, server: int
) -> dict[Relation, tuple[int, int]]:
    """Write a server's edges of every relation in global ids; progress advances by edges.

    Neighbours stay in the order of original ids.

    Returns
    -------
    By relation, the number of edges into the server's nodes, and of cut edges among them.
    """
    counts = {}
    for relation in construction.graph.schema.relations:
        nodes = construction.offsets[relation.dst]
        indptr = open_indptr(construction.work, relation, int(nodes[-1]))
        first, last = nodes[server : server + 2].tolist()
        cut = _fill_lists(construction, relation, server, indptr, progress)
        counts[relation] = int(indptr[last] - indptr[first]), cut
    return counts


def _fill_lists(
    construction: Construction,
    relation: Relation,
    server: int,
    indptr: NDArray[np.int64],
    progress: Progress,
) -> int:
    """Write a server's edges of a relation; return the number of cut edges."""
    old = construction.graph.topology(relation)
    src, dst = construction.maps[relation.src], construction.maps[relation.dst]
    src_first, src_stop = src.offsets[server : server + 2].tolist()
    files = [layout.topology_file(construction.work, relation, name) for name in _BY_EDGE]
    cut, nodes, at_once = 0, dst.offsets[server : server + 2].tolist(), edges_at_once()
    with (
        open_range_writer(files[0]) as write_indices,
        open_range_writer(files[1]) as write_edge_ids,
    ):
        for first, last in row_ranges(indptr, *nodes):
            start, stop = int(indptr[first]), int(indptr[last])
            # A single list may have more edges than are written at a time.
            for edge in range(start, stop, at_once):
                edges = min(at_once, stop - edge)
                indices, edge_ids = np.empty(edges, np.int64), np.empty(edges, np.int64)
                relabel_edges(
                    first,
                    np.asarray(dst.original_ids[first:last]),
                    src.global_ids,
                    np.asarray(old.indptr),
                    np.asarray(old.indices),
                    np.asarray(old.edge_ids),
                    indptr,
                    edge,
                    indices,
                    edge_ids,
                )
                write_indices(edge, indices)
                write_edge_ids(edge, edge_ids)
                cut += int(np.count_nonzero((indices < src_first) | (indices >= src_stop)))
                progress.advance(edges)
            release_pages(old.indptr, old.indices, old.edge_ids, indptr)
    return cut


def fill_draw_arrays(construction: Construction, progress: Progress, relation: Relation) -> None:
    """Write the arrays that draws read of a relation (:mod:`hopper.partition.sampling_index`).

    The relation's edges must have been written. Progress advances by edges.
    """
    kind = construction.graph.schema.relations[relation]
    indptr = open_indptr(construction.work, relation, int(construction.offsets[relation.dst][-1]))
    indices, edge_ids = (
        open_array(
            layout.topology_file(construction.work, relation, name), name, np.int64, (kind.count,)
        )
        for name in _BY_EDGE
    )
    original_ids = construction.maps[relation.src].original_ids

    def edges_of(first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        piece = slice(int(indptr[first]), int(indptr[last]))
        progress.advance(piece.stop - piece.start)
        return original_ids[indices[piece]], edge_ids[piece]

    write_sampling_index(construction.graph, construction.work, relation, indptr, edges_of)


def write_server(
    construction: Construction, progress: Progress, server: int, by_dimension: bool = False
) -> int:
    """Write one server's feature, label and edge feature rows and its ``shard.json``.

    Topology must have been written. Progress advances by bytes.

    Parameters
    ----------
    by_dimension: whether the server stores some columns of all nodes' features.

    Returns
    -------
    Bytes of the server's feature rows (edge features included).
    """
    graph, work, maps = construction.graph, construction.work, construction.maps
    folder = server_folder(work, server)
    folder.mkdir()
    tables, feature_bytes = [], 0
    for node_type, relabelling in maps.items():
        offsets = relabelling.offsets
        first, last = int(offsets[server]), int(offsets[server + 1])
        dim = graph.schema.node_types[node_type].feature_dim
        if by_dimension:
            first, last = 0, int(offsets[-1])
        rows = relabelling.original_ids[first:last]
        if dim is not None:
            file = layout.features_file(folder, node_type)
            features = graph.features(node_type)
            if by_dimension:
                columns = divide_columns(dim, offsets.size - 1)[server]
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
            nodes = maps[relation.dst].offsets[server : server + 2]
            first, edges = _edges_of(work, relation, nodes)
            file, rows = layout.edge_features_file(folder, relation), graph.edge_features(relation)
            feature_bytes += write_rows(rows, edges, file, progress)
            tables.append(
                table_spec("features", str(relation), file, folder, first, edges.size, rows)
            )
    write_manifest(folder, server, next(iter(maps.values())).offsets.size - 1, tables)
    return feature_bytes


def table_bytes(graph: GraphDirectory, copies: int = 1) -> int:
    """Return the bytes of all rows that :func:`write_server` copies, over all servers.

    Parameters
    ----------
    copies: number of servers that have all labels.
    """
    schema = graph.schema
    tables = [graph.labels(name) for name in schema.labels if isinstance(name, str)] * copies
    tables += [graph.features(name) for name, kind in schema.node_types.items() if kind.feature_dim]
    tables += [graph.edge_features(r) for r, kind in schema.relations.items() if kind.feature_dim]
    return sum(table.nbytes for table in tables)


def copy_shared(graph: GraphDirectory, work: Path) -> None:
    """Write the files that do not depend on the division.

    These are ``graph.json``, splits, links, times of target edges and of nodes, and the source's
    names of nodes and classes that are predicted.
    """
    schema = graph.schema
    write_schema(work, schema)
    files = [layout.names_file(graph.path, node_type) for node_type in schema.root_types]
    tasks = schema.target_labels.tasks if schema.target_labels else ()
    for task in ("", *(name for name, _ in tasks)):
        files.append(layout.label_names_file(graph.path, schema.target, task))
    for file in filter(Path.is_file, files):
        copy = work / file.relative_to(graph.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    for owner in schema.timed:
        # Times of other edges are written with the topology.
        is_predicted = schema.predicted == "edge" and owner in schema.target_relations
        if isinstance(owner, str) or is_predicted:
            file = layout.times_file(work, owner)
            file.parent.mkdir(parents=True, exist_ok=True)
            save_array(file, graph.times(owner))
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
    """Read the in-edges of a range of nodes: the first one's index in the CSC, and all edge ids.

    Parameters
    ----------
    rows: [2] int64, bounds of the nodes' global ids.
    """
    folder = layout.topology_file(work, relation, "indptr")
    start, stop = np.load(folder, mmap_mode="r", allow_pickle=False)[rows]
    file = layout.topology_file(work, relation, "edge_ids")
    if start == stop:
        return int(start), np.empty(0, np.int64)
    edge_ids: NDArray[np.int64] = np.load(file, mmap_mode="r", allow_pickle=False)[start:stop]
    return int(start), edge_ids


def write_rows(table: NDArray[Any], rows: NDArray[np.int64], file: Path, progress: Progress) -> int:
    """Write ``table[rows]`` in pieces and return its bytes, by which progress advances."""
    out = create_array(file, table.dtype, (rows.size, *table.shape[1:]))
    row_bytes = table.dtype.itemsize * int(np.prod(table.shape[1:]))
    for first, piece in iter_pieces(rows, max(1, memory_budget().chunk // max(1, row_bytes))):
        out[first : first + piece.size] = table[piece]
        release_pages(table, out)
        progress.advance(piece.size * row_bytes)
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
    """Make the entry in ``shard.json`` of a table whose first row has the id ``first_id``."""
    return TableSpec(
        kind=kind,
        type=node_type,
        file=str(file.relative_to(folder)),
        first_id=first_id,
        count=count,
        dim=1 if table.ndim == 1 else int(table.shape[1]),
        dtype=table.dtype.name,
    )
