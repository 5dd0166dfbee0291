"""Write what a partitioned directory has besides topology: files for all servers, and the rows and
``shard.json`` of each server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.store.manifest import TableSpec, write_manifest
from hopper.graph import layout
from hopper.graph.array_file import (
    array_bytes,
    create_array,
    iter_pieces,
    name_in_errors,
    release_pages,
    save_array,
)
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import memory_budget
from hopper.graph.publish import atomic_output_dir
from hopper.graph.schema_json import write_schema
from hopper.graph.write import required_bytes
from hopper.partition.build_context import BuildContext
from hopper.partition.by_node import divide_columns
from hopper.partition.checksums import seal_directory
from hopper.partition.file_names import server_folder
from hopper.partition.placement import RANK_DTYPE
from hopper.timing.phases import Progress


@contextmanager
def unpublished_partitions(out: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a folder to write into, which becomes ``out`` with checksums when it is complete."""
    with atomic_output_dir(out, needed_bytes) as work, name_in_errors(out):
        yield work
        seal_directory(work)


def partitioned_bytes(
    graph: GraphDirectory, servers: int, *, split: bool, by_dimension: bool, ranks: int
) -> int:
    """Return the bytes on disk that writing a partitioned directory takes: those of the graph, two
    maps a node type, ranks of the second level, and all labels on every server if features are
    divided by dimension.

    If topology is divided afterwards (``split``), a relation lies there twice; halos, which are not
    known yet, take more.
    """
    schema = graph.schema
    nbytes = required_bytes(schema) + sum(16 * kind.count for kind in schema.node_types.values())
    for relation, edges in schema.relations.items():
        # Ids of edges are written as int64.
        nbytes += edges.count * (8 + layout.draw_bytes(schema, relation))
    if ranks > 1:
        nbytes += sum(array_bytes(RANK_DTYPE, (n.count,)) for n in schema.node_types.values())
    if by_dimension:
        nbytes += table_bytes(graph, servers) - table_bytes(graph)
    if split:
        nbytes += max((16 * kind.count for kind in schema.relations.values()), default=0)
        counts = (schema.node_types[relation.dst].count for relation in schema.relations)
        nbytes += sum(servers * array_bytes(np.int64, (1,)) + 8 * n for n in counts)
    return nbytes


def write_server(
    context: BuildContext, progress: Progress, server: int, by_dimension: bool = False
) -> int:
    """Write one server's feature, label and edge feature rows and its ``shard.json``, after
    topology; return the bytes of its feature rows, edge features included.

    Progress advances by bytes. If features are divided by dimension, the server stores some columns
    of all nodes' features.
    """
    graph, schema, servers = context.graph, context.graph.schema, context.servers
    folder, tables = server_folder(context.work, server), list[TableSpec]()
    folder.mkdir()

    def write(
        kind: str, name: str, file: Path, table: NDArray[Any], first: int, rows: NDArray[Any]
    ) -> int:
        tables.append(table_spec(kind, name, file, folder, first, rows.size, table))
        return write_rows(table, rows, file, progress)

    feature_bytes = 0
    for name, maps in context.maps.items():
        first, last = maps.offsets[[0, -1] if by_dimension else [server, server + 1]].tolist()
        rows, dim = maps.original_ids[first:last], schema.node_types[name].feature_dim
        if dim is not None:
            features, file = graph.features(name), layout.features_file(folder, name)
            if by_dimension:
                features = features[:, slice(*divide_columns(dim, servers)[server])]
            feature_bytes += write("features", name, file, features, first, rows)
        if name in schema.labels:
            file = layout.labels_file(folder, name)
            write("labels", name, file, graph.labels(name), first, rows)
    for relation, kind in schema.relations.items():
        if kind.feature_dim is not None:
            nodes = context.offsets[relation.dst][server : server + 2]
            first, last = context.whole(relation, "indptr")[nodes].tolist()
            rows = context.whole(relation, "edge_ids")[first:last]
            table, file = graph.edge_features(relation), layout.edge_features_file(folder, relation)
            feature_bytes += write("features", str(relation), file, table, first, rows)
    write_manifest(folder, server, servers, tables)
    return feature_bytes


def table_bytes(graph: GraphDirectory, copies: int = 1) -> int:
    """Return the bytes of all rows that :func:`write_server` copies, over all servers, ``copies``
    of which have all labels."""
    schema = graph.schema
    tables = [graph.labels(name) for name in schema.labels if isinstance(name, str)] * copies
    tables += [graph.features(name) for name, kind in schema.node_types.items() if kind.feature_dim]
    tables += [graph.edge_features(r) for r, kind in schema.relations.items() if kind.feature_dim]
    return sum(table.nbytes for table in tables)


def copy_shared(graph: GraphDirectory, work: Path) -> None:
    """Write the files that do not depend on the division: ``graph.json``, splits, links, times of
    target edges and of nodes, and the source's names of nodes and classes that are predicted."""
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
            save_array(layout.times_file(work, owner), graph.times(owner))
    for name in schema.splits:
        save_array(layout.split_file(work, name), graph.split(name))
        if not schema.target_relations:
            continue
        links = graph.links(name)
        save_array(layout.links_file(work, name), np.stack((links.relations, links.src, links.dst)))
        if links.labels is not None:
            save_array(layout.link_labels_file(work, name), links.labels)
        if links.times is not None:
            save_array(layout.link_times_file(work, name), links.times)


def write_rows(table: NDArray[Any], rows: NDArray[Any], file: Path, progress: Progress) -> int:
    """Write ``table[rows]`` in pieces and return its bytes, by which progress advances."""
    out = create_array(file, table.dtype, (rows.size, *table.shape[1:]))
    row_bytes = table.dtype.itemsize * int(np.prod(table.shape[1:]))
    for first, piece in iter_pieces(rows, max(1, memory_budget().chunk // max(1, row_bytes))):
        out[first : first + piece.size] = table[piece]
        release_pages(table, out)
        progress.advance(piece.size * row_bytes)
    return int(rows.size) * row_bytes


def table_spec(
    kind: str, name: str, file: Path, folder: Path, first_id: int, count: int, table: NDArray[Any]
) -> TableSpec:
    """Make the entry in ``shard.json`` of a table whose first row has the id ``first_id``."""
    dim = 1 if table.ndim == 1 else int(table.shape[1])
    path = str(file.relative_to(folder))
    return TableSpec(
        kind=kind, type=name, file=path, first_id=first_id, count=count, dim=dim,
        dtype=table.dtype.name,
    )  # fmt: skip
