"""Divide the whole topology, so that a server stores the in-edges of its own nodes and its halo.

The halo are the nodes within some hops of a server's own nodes along in-edges of all relations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from cache_server.store.npy import ID_DTYPES, shard_file
from hopper.errors import RequestError
from hopper.graph import layout
from hopper.graph.array_file import create_array, iter_pieces, open_array, release_pages, save_array
from hopper.graph.memory_budget import row_ranges
from hopper.graph.schema import Relation
from hopper.partition.description import listed_file, map_file, server_folder
from hopper.partition.executor import Executor
from hopper.partition.write import BuildContext
from hopper.partition.write_topology import BY_EDGE
from hopper.timing.phases import Phases, Progress

_MOST_HOPS: Final = 1 << 16


def parse_halo(topology: str) -> int | None:
    """Return the hops of the halo that a server has: None for "replicated" topology, 0 for
    "partitioned", K for "halo:K"."""
    if topology == "replicated":
        return None
    match = re.fullmatch(r"partitioned|halo:([0-9]{1,9})", topology)
    hops = int(match[1] or 0) if match else 0
    if match is None or hops > _MOST_HOPS:
        raise RequestError(
            "topology: expected replicated, partitioned, or halo:K with a number K of hops up to "
            f"{_MOST_HOPS}, given {topology!r:.100}"
        )
    return hops


class _Stored(NamedTuple):
    """How many nodes have their in-edges on a server, and how many edges these are."""

    nodes: dict[str, int]
    edges: dict[Relation, int]
    own_edges: dict[Relation, int]
    """into the server's own nodes"""


def divide_topology(
    context: BuildContext,
    halo: int,
    per_server: Sequence[dict[str, Any]],
    phases: Phases,
    executor: Executor,
) -> dict[str, Any]:
    """Write each server's in-edges, degrees and original ids, and remove the whole arrays; return
    fields of partition.json, and add those of each server to its entry in ``per_server``.

    ``indptr`` of relations with edge features stays, too. The directory must have a folder for each
    server.
    """
    relations, servers = context.graph.schema.relations, range(context.servers)
    whole = context.work / "topology"
    replicated = _sum_bytes(whole, "*.npy")
    edges_read = halo * len(servers) * sum(kind.count for kind in relations.values())
    with phases.phase("find the halos (edges)", edges_read) as counter:
        jobs: list[tuple[Any, ...]] = [(server, halo) for server in servers]
        stored = executor.run(_find_stored, context, counter, jobs)
    edge_bytes = {
        r: sum(context.whole(r, name).dtype.itemsize for name in _arrays_by_edge(context, r))
        for r in relations
    }
    total = sum(sum(part.edges.values()) for part in stored)
    with phases.phase("divide the topology (edges)", total) as counter:
        for relation, kind in relations.items():
            jobs = [(server, relation, halo) for server in servers]
            executor.run(_write_lists, context, counter, jobs)
            # Features of edges are stored in the order of the whole indptr.
            rows: list[layout.StoredArray] = ["indptr"] if kind.feature_dim is None else []
            for name in [*_arrays_by_edge(context, relation), *rows]:
                layout.topology_file(context.work, relation, name).unlink()
    _divide_by_node(context)
    for server, (part, entry) in enumerate(zip(stored, per_server, strict=True)):
        folder = server_folder(context.work, server) / "topology"
        halo_bytes = sum(file.stat().st_size for file in folder.glob("*.npy"))
        for relation, nbytes in edge_bytes.items():
            own = int(np.diff(context.offsets[relation.dst])[server])
            halo_bytes += 8 * (part.nodes[relation.dst] - own)
            halo_bytes += nbytes * (part.edges[relation] - part.own_edges[relation])
        # Of shared files, the degrees of its nodes, and what is in one file.
        nbytes = _sum_bytes(folder, "*.npy") + _sum_bytes(whole, f"*-{server}.npy", "indptr.npy")
        entry |= {
            "halo_nodes": sum(part.nodes.values()) - entry["nodes"],
            "halo_edges": sum(part.edges.values()) - entry["edges"],
            "topology_bytes": nbytes,
            "topology_bytes_without_halo": nbytes - halo_bytes,
        }
    return {"topology": "partitioned", "halo": halo, "replicated_topology_bytes": replicated}


def _find_stored(context: BuildContext, progress: Progress, server: int, hops: int) -> _Stored:
    """Find a server's own nodes and those within some hops, along in-edges of all relations, and
    write their ids if there is a halo; progress advances by edges."""
    relations, near = context.graph.schema.relations, dict[str, NDArray[np.bool_]]()
    for name, bounds in context.offsets.items():
        near[name] = np.zeros(int(bounds[-1]), np.bool_)
        near[name][context.own(name, server)] = True
    for _ in range(hops):
        reached = {name: is_near.copy() for name, is_near in near.items()}
        for relation in relations:
            indptr, indices = (context.whole(relation, name) for name in ("indptr", "indices"))
            for first, last in row_ranges(indptr, 0, indptr.size - 1):
                is_near, bounds = near[relation.dst][first:last], indptr[first : last + 1]
                if is_near.any():
                    chosen = np.repeat(is_near, np.diff(bounds))
                    reached[relation.src][indices[bounds[0] : bounds[-1]][chosen]] = True
                    release_pages(indices)
                progress.advance(int(bounds[-1] - bounds[0]))
        near = reached
    nodes = {name: int(is_near.sum()) for name, is_near in near.items()}
    for name, is_near in near.items() if hops else ():
        file, row = listed_file(server_folder(context.work, server), name), 0
        out = create_array(file, np.int64, (nodes[name],))
        for first, piece in iter_pieces(is_near, 1 << 16):
            ids = first + np.flatnonzero(piece)
            out[row : row + ids.size] = ids
            row += ids.size
    own_edges = {}
    for relation in relations:
        own, indptr = context.own(relation.dst, server), context.whole(relation, "indptr")
        own_edges[relation] = int(indptr[own.stop] - indptr[own.start])
    edges = {r: int(context.whole(r, "in_degrees").sum(where=near[r.dst])) for r in relations}
    return _Stored(nodes, edges, own_edges)


def _write_lists(
    context: BuildContext, progress: Progress, server: int, relation: Relation, halo: int
) -> None:
    """Write a server's lists of a relation; progress advances by edges."""
    folder, own = server_folder(context.work, server), context.own(relation.dst, server)
    indptr, in_degrees = (context.whole(relation, name) for name in ("indptr", "in_degrees"))
    degrees, ids, rows = in_degrees[own], None, own
    if halo:
        ids = open_array(listed_file(folder, relation.dst), "listed nodes", np.int64, None)
        degrees, rows = ids, slice(0, in_degrees.size)
    file = layout.topology_file(folder, relation, "indptr")
    bounds = create_array(file, np.int64, (degrees.size + 1,))
    for first, piece in iter_pieces(degrees):
        of_piece = piece if ids is None else in_degrees[piece]
        bounds[first + 1 : first + 1 + piece.size] = bounds[first] + np.cumsum(of_piece)
    copies, row = [], 0
    for name in _arrays_by_edge(context, relation):
        whole, file = context.whole(relation, name), layout.topology_file(folder, relation, name)
        copies.append((whole, create_array(file, whole.dtype, (int(bounds[-1]),))))
    for first, last in row_ranges(indptr, rows.start, rows.stop):
        end, chosen = row + last - first, cast(Any, slice(None))
        if ids is not None:
            end, is_listed = int(np.searchsorted(ids, last)), np.zeros(last - first, np.bool_)
            is_listed[ids[row:end] - first] = True
            chosen = np.repeat(is_listed, np.diff(indptr[first : last + 1]))
        source = slice(int(indptr[first]), int(indptr[last]))
        target, row = slice(int(bounds[row]), int(bounds[end])), end
        for whole, out in copies if target.start < target.stop else ():
            out[target] = whole[source][chosen]
            release_pages(whole, out)
        release_pages(indptr, bounds)
        progress.advance(target.stop - target.start)


def _divide_by_node(context: BuildContext) -> None:
    """Write the degrees and original ids of each server's nodes to files of their own."""
    files = [
        (map_file(context.work, name, "original_ids"), name, int(bounds[-1]))
        for name, bounds in context.offsets.items()
    ]
    for relation in context.graph.schema.relations:
        most = context.edges(relation) + 1
        into = layout.topology_file(context.work, relation, "in_degrees")
        out_of = layout.topology_file(context.work, relation, "out_degrees")
        files += [(into, relation.dst, most), (out_of, relation.src, most)]
    for file, node_type, most in files:
        bounds = context.offsets[node_type].tolist()
        whole = open_array(file, file.stem, ID_DTYPES, (bounds[-1],))
        for server, (first, stop) in enumerate(pairwise(bounds)):
            save_array(shard_file(file, server), whole[first:stop], layout.id_dtype(most))
        file.unlink()


def _arrays_by_edge(context: BuildContext, relation: Relation) -> list[layout.StoredArray]:
    return [*BY_EDGE, *layout.draw_arrays(context.graph.schema, relation)]


def _sum_bytes(folder: Path, *patterns: str) -> int:
    return sum(file.stat().st_size for pattern in patterns for file in folder.rglob(pattern))
