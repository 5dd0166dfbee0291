"""Stores a server's whole relations as links, copies and derived files.

Files are named first. Files that are no links are written afterwards
(:class:`hopper.partition.stored_files.StoredFiles`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from cache_server.store.manifest import TableSpec
from hopper.graph import layout
from hopper.graph.array_file import array_bytes
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.hetero.meta_partition import Share
from hopper.partition.sampling_index import write_sampling_index_into
from hopper.partition.stored_files import StoredFiles
from hopper.partition.write import table_spec, write_rows
from hopper.timing.phases import Progress

Write = Callable[[Progress], object]
"""A function that writes files, and advances the progress by bytes."""


def whole_bytes(graph: GraphDirectory, share: Share) -> tuple[int, int]:
    """Return the bytes of a share's rows (features, edge features, labels) and topology."""
    tables = [graph.features(node_type) for node_type in _featured_types(graph, share)]
    tables += [graph.labels(node_type) for node_type in _labelled_types(graph, share)]
    tables += [graph.edge_features(relation) for relation in _edge_tables(graph, share)]
    topology = sum(_topology_bytes(graph, relation) for relation in share.relations)
    return sum(table.nbytes for table in tables), topology


def name_share(
    graph: GraphDirectory, folder: Path, share: Share, files: StoredFiles
) -> tuple[list[Write], list[TableSpec]]:
    """Name all files of a server's folder.

    Returns
    -------
    Functions that write the files which are neither links nor copies, and the tables of
    ``shard.json``.
    """
    writes: list[Write] = []
    for relation in share.relations:
        writes += name_topology(graph, folder, relation, files)
    writes += _name_edge_features(graph, folder, share, files)
    return writes, _name_tables(graph, folder, share, files)


def name_topology(
    graph: GraphDirectory, folder: Path, relation: Relation, files: StoredFiles
) -> list[Write]:
    """Name the files of a whole relation, with the arrays of draws by weight and in time.

    Returns
    -------
    Functions that write the files which are neither links nor copies.
    """
    source = _topology_files(graph.topology_folder(relation), relation)
    for file, target in zip(source, _topology_files(folder, relation), strict=True):
        files.store(file, target)
    edges, writes = graph.schema.relations[relation].count, list[Write]()
    for name, dtype in layout.draw_arrays(graph.schema, relation).items():
        file = layout.topology_file(folder, relation, name)
        if files.reserve((name, relation), file, edges * np.dtype(dtype).itemsize):
            # One call writes all of these arrays.
            writes = [partial(write_sampling_index_into, graph, folder, relation, None)]
    return writes


def _name_tables(
    graph: GraphDirectory, folder: Path, share: Share, files: StoredFiles
) -> list[TableSpec]:
    """Name the files of features and labels of whole types."""
    specs = []
    for node_type in _featured_types(graph, share):
        rows, file = graph.features(node_type), layout.features_file(folder, node_type)
        files.store(graph.features_file(node_type), file)
        specs.append(table_spec("features", node_type, file, folder, 0, len(rows), rows))
    for node_type in _labelled_types(graph, share):
        labels, file = graph.labels(node_type), layout.labels_file(folder, node_type)
        files.store(layout.labels_file(graph.path, node_type), file)
        specs.append(table_spec("labels", node_type, file, folder, 0, len(labels), labels))
    return specs


def _name_edge_features(
    graph: GraphDirectory, folder: Path, share: Share, files: StoredFiles
) -> list[Write]:
    """Name the files of edges' features, which follow the order of the topology."""
    writes: list[Write] = []
    for relation in _edge_tables(graph, share):
        rows, file = graph.edge_features(relation), layout.edge_features_file(folder, relation)
        edges = np.asarray(graph.topology(relation).edge_ids)
        size = edges.size * rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
        if files.reserve(("edge features", relation), file, size):
            writes.append(partial(write_rows, rows, edges, file))
    return writes


def _labelled_types(graph: GraphDirectory, share: Share) -> list[str]:
    return [node_type for node_type in share.node_types if node_type in graph.schema.labels]


def _featured_types(graph: GraphDirectory, share: Share) -> list[str]:
    types = graph.schema.node_types
    return [name for name in share.node_types if types[name].feature_dim is not None]


def _edge_tables(graph: GraphDirectory, share: Share) -> list[Relation]:
    relations = graph.schema.relations
    return [name for name in share.relations if relations[name].feature_dim is not None]


def _topology_files(folder: Path, relation: Relation) -> list[Path]:
    return [layout.topology_file(folder, relation, name) for name in layout.TOPOLOGY_ARRAYS]


def _topology_bytes(graph: GraphDirectory, relation: Relation) -> int:
    """Return the bytes of a relation's topology, with the arrays of draws by weight and in time."""
    files = _topology_files(graph.topology_folder(relation), relation)
    arrays = layout.draw_arrays(graph.schema, relation).values()
    shape = (graph.schema.relations[relation].count,)
    draw_bytes = sum(array_bytes(dtype, shape) for dtype in arrays)
    return draw_bytes + sum(file.stat().st_size for file in files)
