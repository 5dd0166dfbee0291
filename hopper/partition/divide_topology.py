"""Give every server the in-edges that it stores, where topology is partitioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph import layout
from hopper.graph.array_file import array_bytes, create_array, open_array, release_pages
from hopper.graph.publish import require_space
from hopper.graph.row_ranges import row_ranges
from hopper.graph.schema import GraphSchema, Relation
from hopper.partition.halo import StoredLists
from hopper.partition.layouts import server_folder
from hopper.partition.whole_topology import open_indptr
from hopper.partition.workers import Construction, Workers
from hopper.phases import Phases, Progress

_BY_EDGE: Final[tuple[layout.StoredArray, ...]] = ("indices", "edge_ids")


@dataclass(frozen=True)
class StoredTopology:
    """What each server needs of the topology.

    Attributes
    ----------
    halo_nodes, halo_edges: [servers] int64, its halo's nodes and their in-edges.
    stored, partitioned: [servers] int64, bytes as it is stored, and as it would be without halos.
    replicated: bytes of all of it.
    """

    halo_nodes: NDArray[np.int64]
    halo_edges: NDArray[np.int64]
    stored: NDArray[np.int64]
    partitioned: NDArray[np.int64]
    replicated: int


def divide_topology(
    construction: Construction, halo: int, phases: Phases, workers: Workers
) -> StoredTopology:
    """Give every server the in-edges of its own nodes, and of those within ``halo`` hops of them.

    Degrees stay where all find them, and so does ``indptr``, where edges have features.

    Parameters
    ----------
    construction: its directory has a folder a server, and the whole topology, in global ids, which
        is removed.
    workers: who writes the servers' lists.

    Raises
    ------
    RequestError: the disk has too little space; names what is needed and what there is.
    """
    schema, work = construction.graph.schema, construction.work
    relations = {relation: kind.count for relation, kind in schema.relations.items()}
    lists = StoredLists(construction.offsets)
    own_nodes = lists.count_nodes()
    own_edges = {each: lists.count_edges(each, work) for each in relations}
    with phases.phase("find the halos (edges)", halo * sum(relations.values())) as counter:
        for _ in range(halo):
            lists.widen(work, relations, counter)
        edges = {each: lists.count_edges(each, work) for each in relations}
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
        array_bytes(np.int64, (schema.node_types[each].count,))
        for relation in relations
        for each in (relation.src, relation.dst)
    ]
    return StoredTopology(
        halo_nodes=lists.count_nodes() - own_nodes,
        halo_edges=total - np.sum([*own_edges.values()], axis=0),
        stored=_server_bytes(schema, edges) + sum(degrees),
        partitioned=_server_bytes(schema, own_edges) + sum(degrees),
        replicated=sum(_list_bytes(schema, *each) for each in relations.items()) + sum(degrees),
    )


def _write_lists(
    construction: Construction,
    progress: Progress,
    server: int,
    relation: Relation,
    is_stored: NDArray[np.uint8],
    edges: int,
) -> None:
    """Give a server its edges of a relation.

    Its ``indptr`` has a row for every node, empty where it stores no list, so ids mean the same as
    in one topology for all. Progress advances by edges.

    Parameters
    ----------
    is_stored: a bit a destination (numpy.packbits), those whose lists it stores.
    edges: how many it stores.
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
        some = np.unpackbits(is_stored[first // 8 : (last + 7) // 8])[first % 8 :][: last - first]
        _copy_lists(first, some.astype(np.bool_), indptr, whole, bounds, out)
        release_pages(indptr, bounds, *whole.values(), *out.values())
        progress.advance(int(bounds[last] - bounds[first]))


def _remove_whole(schema: GraphSchema, work: Path, relation: Relation) -> None:
    """Remove a relation's topology that was divided, all but what all servers read."""
    names: list[layout.StoredArray] = _arrays_by_edge(schema, relation)
    if schema.relations[relation].feature_dim is None:
        # Otherwise it tells where the features of an edge stand.
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
    """Copy the lists of some of the rows from ``first`` on, whose bounds are in ``indptr``, behind
    those that are there already, whose bounds are in ``bounds``."""
    last = first + is_stored.size
    counts = np.diff(indptr[first : last + 1])
    np.cumsum(counts * is_stored, out=bounds[first + 1 : last + 1])
    bounds[first + 1 : last + 1] += bounds[first]
    target = slice(int(bounds[first]), int(bounds[last]))
    if target.start == target.stop:
        return
    source = slice(int(indptr[first]), int(indptr[last]))
    is_part = target.stop - target.start < source.stop - source.start
    chosen = np.repeat(is_stored, counts) if is_part else slice(None)
    for name, array in whole.items():
        out[name][target] = array[source][chosen]


def _list_bytes(schema: GraphSchema, relation: Relation, edges: int) -> int:
    """Bytes of the lists of a relation, of which that many edges are stored."""
    found = array_bytes(np.int64, (schema.node_types[relation.dst].count + 1,))
    dtypes: Sequence[Any] = [np.int64] * len(_BY_EDGE) + [
        *layout.draw_arrays(schema, relation).values()
    ]
    return found + sum(array_bytes(dtype, (edges,)) for dtype in dtypes)


def _server_bytes(
    schema: GraphSchema, edges: Mapping[Relation, NDArray[np.int64]]
) -> NDArray[np.int64]:
    """[servers] int64: bytes of the lists that each stores, and of where features of edges stand.

    Parameters
    ----------
    edges: [servers] int64 by relation, how many each stores.
    """
    found: Any = 0
    for relation, counts in edges.items():
        found = found + np.array([_list_bytes(schema, relation, each) for each in counts.tolist()])
        if schema.relations[relation].feature_dim is not None:
            nodes = schema.node_types[relation.dst].count
            found = found + array_bytes(np.int64, (nodes + 1,))
    return np.asarray(found, np.int64)


def _most_bytes(schema: GraphSchema, edges: Mapping[Relation, NDArray[np.int64]]) -> int:
    """Bytes that dividing takes of the disk at once, beside the whole topology, of which a relation
    is removed when it is divided."""
    taken = most = 0
    for relation, counts in edges.items():
        taken += sum(_list_bytes(schema, relation, each) for each in counts.tolist())
        most = max(most, taken)
        taken -= _list_bytes(schema, relation, schema.relations[relation].count)
    return most
