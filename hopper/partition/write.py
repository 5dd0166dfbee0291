"""Write what a partitioned directory has besides topology: maps of ids and other files for all
servers, and the rows and ``shard.json`` of each server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from cache_server.store.manifest import TableSpec, write_manifest
from cache_server.store.npy import ID_DTYPES
from hopper.graph import layout
from hopper.graph.array_file import (
    create_array,
    iter_pieces,
    name_in_errors,
    open_array,
    release_pages,
    save_array,
)
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import memory_budget
from hopper.graph.publish import atomic_output_dir
from hopper.graph.schema import Relation
from hopper.graph.schema_json import write_schema
from hopper.graph.topology import Ids
from hopper.graph.write import required_bytes
from hopper.partition.checksums import seal_directory
from hopper.partition.description import MAP_NAMES, MapName, map_file, server_folder
from hopper.partition.layout import divide_columns
from hopper.timing.phases import Progress


@dataclass(frozen=True)
class BuildContext:
    """The input of every part of a partitioned directory; a process that can read these folders can
    build any part."""

    graph: GraphDirectory
    work: Path
    """the directory that is being written"""
    offsets: dict[str, Ids]
    """by node type [servers + 1] int64, bounds of the global ids of each server's nodes"""

    @property
    def servers(self) -> int:
        """Number of servers."""
        return next(iter(self.offsets.values())).size - 1

    def own(self, node_type: str, server: int) -> slice:
        """Return the global ids of a server's nodes of a type."""
        return slice(*self.offsets[node_type][server : server + 2].tolist())

    def map(self, node_type: str, name: MapName) -> Ids:
        """Map [count] int32 or int64: the original id of each global id of a type, or back."""
        count = int(self.offsets[node_type][-1])
        return open_array(map_file(self.work, node_type, name), name, ID_DTYPES, (count,))

    def whole(self, relation: Relation, name: layout.StoredArray) -> NDArray[Any]:
        """Map an array of a relation's whole topology in global ids, while it is there."""
        # An empty array cannot be mapped. Nothing is checked, since this work wrote the file.
        mode: Literal["r"] | None = "r" if self.edges(relation) or name == "indptr" else None
        file = layout.topology_file(self.work, relation, name)
        return np.asarray(np.load(file, mmap_mode=mode, allow_pickle=False))

    def edges(self, relation: Relation) -> int:
        """Return the number of edges of a relation."""
        return self.graph.schema.relations[relation].count


def number_nodes(homes: NDArray[np.int32], servers: int, work: Path, node_type: str) -> Ids:
    """Give the nodes of one type global ids, contiguous by server and in order of original id
    within a server; write both maps, and return the bounds of each server's ids."""
    counts = np.zeros(servers, np.int64)
    for _, piece in iter_pieces(homes):
        counts += np.bincount(piece, minlength=servers)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    dtype, shape = layout.id_dtype(homes.size), (homes.size,)
    original_ids, global_ids = (
        create_array(map_file(work, node_type, name), dtype, shape) for name in MAP_NAMES
    )
    _deal(homes, offsets[:-1].copy(), np.asarray(global_ids), np.asarray(original_ids))
    release_pages(original_ids, global_ids, homes)
    return offsets


@kernel
def _deal(homes: NDArray[np.int32], cursor: Ids, global_ids: Ids, original_ids: Ids) -> None:
    for node in range(homes.size):
        global_id = cursor[homes[node]]
        cursor[homes[node]] += 1
        global_ids[node] = global_id
        original_ids[global_id] = node


@contextmanager
def unpublished_partitions(out: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a folder to write into, which becomes ``out`` with checksums when it is complete."""
    with atomic_output_dir(out, needed_bytes) as work, name_in_errors(out):
        yield work
        seal_directory(work)


def partitioned_bytes(
    graph: GraphDirectory, servers: int, *, split: bool, by_dimension: bool
) -> int:
    """Return the bytes on disk that writing a partitioned directory takes. If topology is divided
    afterwards (``split``), a relation lies there twice."""
    schema, kinds = graph.schema, graph.schema.relations
    nbytes = required_bytes(schema) + sum(
        2 * kind.count * layout.id_dtype(kind.count).itemsize for kind in schema.node_types.values()
    )
    # Ids of edges are written as int64.
    nbytes += sum(kind.count * (8 + layout.draw_bytes(schema, r)) for r, kind in kinds.items())
    if by_dimension:
        nbytes += table_bytes(graph, servers) - table_bytes(graph)
    if split:
        nbytes += max((16 * kind.count for kind in kinds.values()), default=0)
        nbytes += sum(8 * (schema.node_types[r.dst].count + 17 * servers) for r in kinds)
    return nbytes


def write_server(
    context: BuildContext, progress: Progress, server: int, by_dimension: bool = False
) -> int:
    """Write one server's rows of features, labels and edge features, and its ``shard.json``, after
    topology; return the bytes of its features. Progress advances by bytes."""
    graph, schema, servers = context.graph, context.graph.schema, context.servers
    folder, tables = server_folder(context.work, server), list[TableSpec]()
    folder.mkdir()

    def write(
        kind: str, name: str, file: Path, table: NDArray[Any], first: int, rows: NDArray[Any]
    ) -> int:
        tables.append(table_spec(kind, name, file, folder, first, rows.size, table))
        return write_rows(table, rows, file, progress)

    feature_bytes = 0
    for name, node_type in schema.node_types.items():
        own = slice(0, node_type.count) if by_dimension else context.own(name, server)
        first, rows = own.start, context.map(name, "original_ids")[own]
        if (dim := node_type.feature_dim) is not None:
            features, file = graph.features(name), layout.features_file(folder, name)
            if by_dimension:
                columns = divide_columns(dim, servers)[server]
                features = features[:, columns.start : columns.stop]
            feature_bytes += write("features", name, file, features, first, rows)
        if name in schema.labels:
            file = layout.labels_file(folder, name)
            write("labels", name, file, graph.labels(name), first, rows)
    for relation, kind in schema.relations.items():
        if kind.feature_dim is not None:
            own, indptr = context.own(relation.dst, server), context.whole(relation, "indptr")
            first = int(indptr[own.start])
            rows = context.whole(relation, "edge_ids")[first : indptr[own.stop]]
            table, file = graph.features(relation), layout.features_file(folder, relation)
            feature_bytes += write("features", str(relation), file, table, first, rows)
    write_manifest(folder, server, servers, tables)
    return feature_bytes


def table_bytes(graph: GraphDirectory, copies: int = 1) -> int:
    """Return the bytes of all rows that :func:`write_server` copies, over all servers, ``copies``
    of which have all labels."""
    schema = graph.schema
    tables = [graph.labels(name) for name in schema.labels if isinstance(name, str)] * copies
    tables += [graph.features(owner) for owner, kind in schema.kinds.items() if kind.feature_dim]
    return sum(table.nbytes for table in tables)


def copy_shared(graph: GraphDirectory, work: Path) -> None:
    """Write the files that do not depend on the division: ``graph.json``, splits, links, times, and
    the source's names of nodes and classes that are predicted."""
    schema = graph.schema
    write_schema(work, schema)
    files = [layout.names_file(graph.path, node_type) for node_type in schema.root_types]
    tasks = schema.target_labels.tasks if schema.target_labels else ()
    names = ("", *(name for name, _ in tasks))
    files += [layout.label_names_file(graph.path, schema.target, name) for name in names]
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
            save_array(layout.links_file(work, name, "labels"), links.labels)
        if links.times is not None:
            save_array(layout.links_file(work, name, "times"), links.times)


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
    dim, path = 1 if table.ndim == 1 else int(table.shape[1]), str(file.relative_to(folder))
    return TableSpec(
        kind=kind, type=name, file=path, first_id=first_id, count=count, dim=dim,
        dtype=table.dtype.name,
    )  # fmt: skip
