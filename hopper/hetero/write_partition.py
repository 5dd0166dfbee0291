"""Writes the folder of a server, where relations are divided: whole relations, or a part of one.

Files are named first, so that their bytes are known, and then written. Whole files are links to the
graph's files if possible. A hard link is a second name of the same bytes, so storing a table takes
no time, space or memory. But a change of a linked file in place changes it under all of its names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cache_server.store.manifest import TableSpec
from hopper.graph import layout
from hopper.graph.array_file import array_bytes, create_array, release_pages, save_array
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.hetero.vertex_cut import CutPart, edges_into, part_bytes, root_edges
from hopper.partition.description import ROOTS_FOLDER, ServerPartition, stored_ids_file
from hopper.partition.write import table_spec, write_rows
from hopper.partition.write_topology import write_sampling_index_into
from hopper.timing.phases import Progress

Tables = Literal["link", "copy"]
"""How a partitioned directory stores whole files of the graph."""
Write = Callable[[Progress], object]
"""A function that writes files, and advances the progress by bytes."""
Edges = NDArray[np.int64]


class StoredFiles:
    """The files of all servers, each of which :meth:`write` writes at most once: links, which cost
    nothing, and what has to be written."""

    def __init__(self, tables: Tables) -> None:
        self.bytes_to_write = 0
        """bytes of all files that are not links"""
        self.linked_bytes = 0
        """bytes of all files that are links to the graph's files"""
        self._tables = tables
        self._first: dict[Hashable, Path] = {}
        self._writes: list[Write] = []

    def store(self, source: Path, target: Path) -> None:
        """Store a file of the graph as a link, or else as a copy."""
        size = source.stat().st_size
        if self._tables == "link" and _link(source, target):
            self.linked_bytes += size
        else:
            self.make(source, {target: size}, partial(_copy, source, target))

    def make(self, content: Hashable, sizes: Mapping[Path, int], write: Write) -> None:
        """Create empty files, which ``write`` is to fill in place with so many bytes, or link them
        to files with the same ``content``, a key."""
        is_new = False
        for number, (file, size) in enumerate(sizes.items()):
            first = self._first.setdefault((content, number), file)
            if first == file or not _link(first, file):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch(exist_ok=False)
                self.bytes_to_write += size
                is_new = True
        if is_new:
            self._writes.append(write)

    def make_apart(self, size: int, write: Write) -> None:
        """Have ``write`` create and fill files of so many bytes together, which no others equal."""
        self.bytes_to_write += size
        self._writes.append(write)

    def write(self, progress: Progress) -> None:
        """Write everything that is no link; progress advances by bytes."""
        for write in self._writes:
            write(progress)


def _copy(source: Path, target: Path, progress: Progress) -> None:
    shutil.copyfile(source, target)
    progress.advance(source.stat().st_size)


def _link(source: Path, target: Path) -> bool:
    """Make a hard link; return False if that is impossible, as on another file system, one without
    links, or of a file of another user."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A link to a symbolic link would be broken in a copy of a server's folder.
        os.link(source.resolve(), target)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


def whole_bytes(graph: GraphDirectory, share: ServerPartition) -> tuple[int, int]:
    """Return the bytes of a share's rows (features, edge features, labels) and topology."""
    tables = [table for _, _, table in _node_tables(graph, share)]
    tables += [graph.features(relation) for relation in _edge_tables(graph, share)]
    topology = 0
    for relation in share.relations:
        files = [graph.file(name, relation) for name in layout.TOPOLOGY_ARRAYS]
        shape = (graph.schema.relations[relation].count,)
        arrays = layout.draw_arrays(graph.schema, relation).values()
        topology += sum(array_bytes(dtype, shape) for dtype in arrays)
        topology += sum(file.stat().st_size for file in files)
    return sum(table.nbytes for table in tables), topology


def name_share(
    graph: GraphDirectory, folder: Path, share: ServerPartition, files: StoredFiles
) -> list[TableSpec]:
    """Name all files of a server's folder; return the tables of its ``shard.json``."""
    for relation in sorted(share.relations):
        name_topology(graph, folder, relation, files)
    for relation in _edge_tables(graph, share):
        # Features of edges follow the order of the topology.
        rows, file = graph.features(relation), layout.features_file(folder, relation)
        edges = np.asarray(graph.topology(relation).edge_ids)
        size = edges.size * rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
        write = partial(write_rows, rows, edges, file)
        files.make(("edge features", relation), {file: size}, write)
    specs = []
    for kind, name, table in _node_tables(graph, share):
        file = (layout.features_file if kind == "features" else layout.labels_file)(folder, name)
        files.store(graph.file(kind, name), file)
        specs.append(table_spec(kind, name, file, folder, 0, len(table), table))
    return specs


def name_topology(
    graph: GraphDirectory, folder: Path, relation: Relation, files: StoredFiles
) -> None:
    """Name the files of a whole relation, with the arrays of draws by weight and in time."""
    for name in layout.TOPOLOGY_ARRAYS:
        files.store(graph.file(name, relation), layout.topology_file(folder, relation, name))
    edges = graph.schema.relations[relation].count
    sizes = {
        layout.topology_file(folder, relation, name): edges * dtype.itemsize
        for name, dtype in layout.draw_arrays(graph.schema, relation).items()
    }
    write = partial(write_sampling_index_into, graph, folder, relation, None)
    files.make(("draws", relation), sizes, write)


def name_part(graph: GraphDirectory, folder: Path, part: CutPart, files: StoredFiles) -> None:
    """Name all files of a server's folder that has a part of a sub-metatree."""
    nbytes, stored = 0, [(folder, relation) for relation in part.relations]
    names: tuple[layout.TopologyArray, ...] = ("in_degrees", "out_degrees")
    for root, relation in [*stored, (folder / ROOTS_FOLDER, part.root)]:
        # A part has the degrees of all nodes of its relations.
        topology = graph.topology(relation)
        for name in names:
            file = layout.topology_file(root, relation, name)
            files.store(graph.file(name, relation), file)
        nbytes -= topology.in_degrees.nbytes + topology.out_degrees.nbytes
    nbytes += sum(part_bytes(graph, part))
    files.make_apart(nbytes, partial(_write_part, graph, folder, part))


def _node_tables(
    graph: GraphDirectory, share: ServerPartition
) -> list[tuple[Literal["features", "labels"], str, NDArray[Any]]]:
    """Return the tables of features and of labels of a share's types, with their kind and type."""
    schema, names = graph.schema, sorted(share.node_types)
    featured = [name for name in names if schema.node_types[name].feature_dim is not None]
    labelled = [name for name in names if name in schema.labels]
    return [
        *(("features", name, graph.features(name)) for name in featured),
        *(("labels", name, graph.labels(name)) for name in labelled),
    ]


def _edge_tables(graph: GraphDirectory, share: ServerPartition) -> list[Relation]:
    kinds = graph.schema.relations
    return [name for name in sorted(share.relations) if kinds[name].feature_dim is not None]


def _write_part(graph: GraphDirectory, folder: Path, part: CutPart, progress: Progress) -> None:
    """Write the topology, rows and ids of a part, whose degrees are there already."""
    for relation in part.relations:
        expanded = part.expanded[relation.dst]
        below = partial(edges_into, graph.topology(relation), expanded)
        _write_edges(graph, folder, relation, below, progress)
        write_sampling_index_into(graph, folder, relation, expanded, progress)
    roots, into_roots = folder / ROOTS_FOLDER, partial(root_edges, graph, part)
    _write_edges(graph, roots, part.root, into_roots, progress, with_positions=True)
    # These cover the whole neighbour lists, since draws depend on all edges of a list.
    write_sampling_index_into(graph, roots, part.root, part.root_nodes, progress)
    for node_type, mask in part.nodes.items():
        ids = np.flatnonzero(mask)
        save_array(stored_ids_file(folder, node_type), ids)
        progress.advance(ids.nbytes)
        if graph.schema.node_types[node_type].feature_dim is not None:
            file = layout.features_file(folder, node_type)
            write_rows(graph.features(node_type), ids, file, progress)
        if node_type in graph.schema.labels:
            file = layout.labels_file(folder, node_type)
            write_rows(graph.labels(node_type), ids, file, progress)


def _write_edges(
    graph: GraphDirectory,
    folder: Path,
    relation: Relation,
    chosen: Callable[[], Iterator[Edges]],
    progress: Progress,
    *,
    with_positions: bool = False,
) -> None:
    """Write some edges of a relation, whose numbers ``chosen`` yields ascending, piece by piece."""
    whole = graph.topology(relation)
    nodes = whole.in_degrees.size

    def create(name: Any, length: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
        array = create_array(layout.topology_file(folder, relation, name), dtype, (length,))
        return np.asarray(array)

    counts = np.zeros(nodes, np.int64)
    for edges in chosen():
        counts += np.bincount(_rows_of(whole, edges), minlength=nodes)
    indptr = create("indptr", nodes + 1)
    np.cumsum(counts, out=indptr[1:])
    total = int(indptr[-1])
    indices = create("indices", total, whole.indices.dtype)
    edge_ids = create("edge_ids", total, whole.edge_ids.dtype)
    positions = create("positions", total, edge_ids.dtype) if with_positions else None
    offset = 0
    for edges in chosen():
        piece = slice(offset, offset + edges.size)
        indices[piece], edge_ids[piece] = whole.indices[edges], whole.edge_ids[edges]
        if positions is not None:
            positions[piece] = edges - whole.indptr[_rows_of(whole, edges)]
            progress.advance(positions[piece].nbytes)
            release_pages(positions)
        progress.advance(indices[piece].nbytes + edge_ids[piece].nbytes)
        release_pages(indices, edge_ids, whole.edge_ids)
        offset += edges.size
    progress.advance(indptr.nbytes)
    if graph.schema.relations[relation].feature_dim is not None:
        # Features follow the order of the topology, as in every partitioned directory.
        file = layout.features_file(folder, relation)
        write_rows(graph.features(relation), edge_ids, file, progress)


def _rows_of(topology: Topology, edges: Edges) -> Edges:
    """Return the destinations [n], int64, of edges, which are given by their numbers."""
    return np.searchsorted(topology.indptr, edges, side="right") - 1
