"""Write the in-edges that each server stores, where topology is partitioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph import layout
from hopper.graph.array_file import array_bytes, create_array, open_array, release_pages
from hopper.graph.memory_budget import row_ranges
from hopper.graph.publish import require_space
from hopper.graph.schema import GraphSchema, Relation
from hopper.partition.file_names import server_folder
from hopper.partition.halo import StoredLists
from hopper.partition.whole_topology import open_indptr
from hopper.partition.workers import Construction, Workers
from hopper.phases import Phases, Progress

_BY_EDGE: Final[tuple[layout.StoredArray, ...]] = ("indices", "edge_ids")


@dataclass(frozen=True)
class StoredTopology:
    """The size of each server's topology.

    Attributes
    ----------
    halo_nodes, halo_edges: [servers] int64, number of nodes of the halo, and of their in-edges.
    stored: [servers] int64, bytes of the stored topology.
    partitioned: [servers] int64, bytes that it would have without a halo.
    replicated: bytes of the whole topology.
    """

    halo_nodes: NDArray[np.int64]
    halo_edges: NDArray[np.int64]
    stored: NDArray[np.int64]
    partitioned: NDArray[np.int64]
    replicated: int


def divide_topology(
    construction: Construction, halo: int, phases: Phases, workers: Workers
) -> StoredTopology:
    """Write the in-edges of each server's own nodes, and of nodes within ``halo`` hops of them.

    Degrees stay where all servers read them, and so does ``indptr`` of relations with edge
    features.

    Parameters
    ----------
    construction: its directory has a folder for each server, and the whole topology in global ids,
        which is removed.
    workers: write the servers' lists.

    Raises
    ------
    RequestError: the disk has too little space. The text has the bytes needed and available.
    """
    schema, work = construction.graph.schema, construction.work
    relations = {relation: kind.count for relation, kind in schema.relations.items()}
    lists = StoredLists(construction.offsets)
    own_nodes = lists.count_nodes()
    own_edges = {relation: lists.count_edges(relation, work) for relation in relations}
    with phases.phase("find the halos (edges)", halo * sum(relations.values())) as counter:
        for _ in range(halo):
            lists.widen(work, relations, counter)
        edges = {relation: lists.count_edges(relation, work) for relation in relations}
    require_space(work.parent, _most_bytes(schema, edges))
    total = np.sum([*edges.values()], axis=0)
    with phases.phase("divide the topology (edges)", int(total.sum())) as counter:
        for relation in relations:
            jobs = [
                (server, relation, lists.of_server(relation.dst, server), count)
                for server, count in enumerate(edges[relation].tolist())
            ]
            workers.run(_write_lists, construction, counter, jobs)
            _remove_whole(schema, work, relation)
    degrees = [
        array_bytes(np.int64, (schema.node_types[node_type].count,))
        for relation in relations
        for node_type in (relation.src, relation.dst)
    ]
    return StoredTopology(
        halo_nodes=lists.count_nodes() - own_nodes,
        halo_edges=total - np.sum([*own_edges.values()], axis=0),
        stored=_server_bytes(schema, edges) + sum(degrees),
        partitioned=_server_bytes(schema, own_edges) + sum(degrees),
        replicated=sum(degrees)
        + sum(_list_bytes(schema, relation, count) for relation, count in relations.items()),
    )


def _write_lists(
    construction: Construction,
    progress: Progress,
    server: int,
    relation: Relation,
    is_stored: NDArray[np.uint8],
    edges: int,
) -> None:
    """Write a server's edges of a relation; progress advances by edges.

    ``indptr`` has a row for every node, also for nodes whose lists the server does not store. So
    rows are global ids, as in the whole topology.

    Parameters
    ----------
    is_stored: a bit for each destination (numpy.packbits), whether the server stores its list.
    edges: number of edges that the server stores.
    """
    schema, work = construction.graph.schema, construction.work
    indptr = open_indptr(work, relation, schema.node_types[relation.dst].count)
    whole = {
        name: open_array(
            layout.topology_file(work, relation, name),
            name,
            layout.stored_dtype(name),
            (int(indptr[-1]),),
        )
        for name in _arrays_by_edge(schema, relation)
    }
    folder = server_folder(work, server)
    bounds = create_array(layout.topology_file(folder, relation, "indptr"), np.int64, indptr.shape)
    out = {
        name: create_array(layout.topology_file(folder, relation, name), array.dtype, (edges,))
        for name, array in whole.items()
    }
    for first, last in row_ranges(indptr, 0, indptr.size - 1):
        is_listed = np.unpackbits(is_stored[first // 8 : (last + 7) // 8])[first % 8 :][
            : last - first
        ]
        _copy_lists(first, is_listed.astype(np.bool_), indptr, whole, bounds, out)
        release_pages(indptr, bounds, *whole.values(), *out.values())
        progress.advance(int(bounds[last] - bounds[first]))


def _remove_whole(schema: GraphSchema, work: Path, relation: Relation) -> None:
    """Remove a relation's whole topology, except for the arrays that all servers read."""
    names: list[layout.StoredArray] = _arrays_by_edge(schema, relation)
    if schema.relations[relation].feature_dim is None:
        # Features of edges are stored in the order of the whole indptr.
        names.append("indptr")
    for name in names:
        layout.topology_file(work, relation, name).unlink()


def _arrays_by_edge(schema: GraphSchema, relation: Relation) -> list[layout.StoredArray]:
    return [*_BY_EDGE, *layout.draw_arrays(schema, relation)]


def _copy_lists(
    first: int,
    is_stored: NDArray[np.bool_],
    indptr: NDArray[np.int64],
    whole: Mapping[layout.StoredArray, NDArray[Any]],
    bounds: NDArray[np.int64],
    out: Mapping[layout.StoredArray, NDArray[Any]],
) -> None:
    """Append the lists of some rows to ``out``.

    Parameters
    ----------
    first: the first row.
    is_stored: [rows] bool, whether to copy each row from ``first`` on.
    indptr: bounds of the rows in ``whole``.
    bounds: bounds of the rows in ``out``, known up to row ``first``; continued here.
    """
    last = first + is_stored.size
    counts = np.diff(indptr[first : last + 1])
    np.cumsum(counts * is_stored, out=bounds[first + 1 : last + 1])
    bounds[first + 1 : last + 1] += bounds[first]
    target = slice(int(bounds[first]), int(bounds[last]))
    if target.start == target.stop:
        return
    source = slice(int(indptr[first]), int(indptr[last]))
    is_part = target.stop - target.start < source.stop - source.start
    edges = np.repeat(is_stored, counts) if is_part else slice(None)
    for name, array in whole.items():
        out[name][target] = array[source][edges]


def _list_bytes(schema: GraphSchema, relation: Relation, edges: int) -> int:
    """Return the bytes of a relation's lists with so many edges."""
    indptr_bytes = array_bytes(np.int64, (schema.node_types[relation.dst].count + 1,))
    dtypes: Sequence[Any] = [np.int64] * len(_BY_EDGE) + [
        *layout.draw_arrays(schema, relation).values()
    ]
    return indptr_bytes + sum(array_bytes(dtype, (edges,)) for dtype in dtypes)


def _server_bytes(
    schema: GraphSchema, edges: Mapping[Relation, NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return [servers] int64: bytes of each server's lists, and of the whole indptr for edge
    features.

    Parameters
    ----------
    edges: by relation [servers] int64, number of edges that each server stores.
    """
    total: Any = 0
    for relation, counts in edges.items():
        total = total + np.array([_list_bytes(schema, relation, n) for n in counts.tolist()])
        if schema.relations[relation].feature_dim is not None:
            nodes = schema.node_types[relation.dst].count
            total = total + array_bytes(np.int64, (nodes + 1,))
    return np.asarray(total, np.int64)


def _most_bytes(schema: GraphSchema, edges: Mapping[Relation, NDArray[np.int64]]) -> int:
    """Return the most bytes of disk space that dividing takes at a time, besides the whole
    topology.

    A relation of the whole topology is removed when it has been divided.
    """
    used = most = 0
    for relation, counts in edges.items():
        used += sum(_list_bytes(schema, relation, n) for n in counts.tolist())
        most = max(most, used)
        used -= _list_bytes(schema, relation, schema.relations[relation].count)
    return most
