"""Writes a server's part of a sub-metatree that is cut: its edges, its rows and their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopper.graph import layout
from hopper.graph.array_file import create_array, release_pages, save_array
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.hetero.vertex_cut import CutPart, edges_into, part_bytes, root_edges
from hopper.partition.file_names import ROOTS_FOLDER, stored_ids_file
from hopper.partition.sampling_index import write_sampling_index_into
from hopper.partition.stored_files import StoredFiles
from hopper.partition.write import write_rows
from hopper.timing.phases import Progress

Edges = NDArray[np.int64]
DEGREES: Final[tuple[layout.TopologyArray, ...]] = ("in_degrees", "out_degrees")


def name_degrees(graph: GraphDirectory, folder: Path, part: CutPart, files: StoredFiles) -> None:
    """Name the files of degrees, which a part stores for all nodes of its relations."""
    stored = [(folder, relation) for relation in part.relations]
    stored.append((folder / ROOTS_FOLDER, part.root))
    for where, relation in stored:
        whole = graph.topology_folder(relation)
        for name in DEGREES:
            source = layout.topology_file(whole, relation, name)
            files.store(source, layout.topology_file(where, relation, name))


def written_bytes(graph: GraphDirectory, part: CutPart) -> int:
    """Return the bytes that :func:`write_part` writes."""
    topologies = [graph.topology(relation) for relation in (*part.relations, part.root)]
    degrees = sum(t.in_degrees.nbytes + t.out_degrees.nbytes for t in topologies)
    return sum(part_bytes(graph, part)) - degrees


def write_part(
    graph: GraphDirectory,
    folder: Path,
    part: CutPart,
    progress: Progress,
) -> None:
    """Write the topology, rows and ids of a part into a server's folder.

    Its degrees are there already. ``progress`` advances by bytes.
    """
    for relation in part.relations:
        expanded = part.expanded[relation.dst]
        below = partial(edges_into, graph.topology(relation), expanded)
        _write_edges(graph, folder, relation, below, progress)
        write_sampling_index_into(graph, folder, relation, expanded, progress)
    roots, into_roots = folder / ROOTS_FOLDER, partial(root_edges, graph, part)
    _write_edges(graph, roots, part.root, into_roots, progress, with_positions=True)
    # These cover the whole neighbour lists, since draws depend on all edges of a list.
    write_sampling_index_into(graph, roots, part.root, part.root_nodes, progress)
    _write_rows(graph, folder, part.nodes, progress)


def _write_edges(
    graph: GraphDirectory,
    folder: Path,
    relation: Relation,
    chosen: Callable[[], Iterator[Edges]],
    progress: Progress,
    *,
    with_positions: bool = False,
) -> None:
    """Write some edges of a relation.

    Parameters
    ----------
    chosen: yields the numbers of the edges, ascending, piece by piece. It is called twice.
    """
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
        file = layout.edge_features_file(folder, relation)
        write_rows(graph.edge_features(relation), edge_ids, file, progress)


def _rows_of(topology: Topology, edges: Edges) -> Edges:
    """Return the destinations [n], int64, of edges, which are given by their numbers."""
    return np.searchsorted(topology.indptr, edges, side="right") - 1


def _write_rows(
    graph: GraphDirectory, folder: Path, nodes: Mapping[str, Any], progress: Progress
) -> None:
    """Write features, labels and ids of some nodes of each type."""
    for node_type, mask in nodes.items():
        ids = np.flatnonzero(mask)
        save_array(stored_ids_file(folder, node_type), ids)
        progress.advance(ids.nbytes)
        if graph.schema.node_types[node_type].feature_dim is not None:
            file = layout.features_file(folder, node_type)
            write_rows(graph.features(node_type), ids, file, progress)
        if node_type in graph.schema.labels:
            file = layout.labels_file(folder, node_type)
            write_rows(graph.labels(node_type), ids, file, progress)
