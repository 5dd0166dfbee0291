"""Divide the whole topology, so that a server stores the in-edges of its own nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cache_server.store.npy import ID_DTYPES, shard_file
from hopper.graph import layout
from hopper.graph.array_file import create_array, iter_pieces, open_array, release_pages, save_array
from hopper.graph.schema import Relation
from hopper.partition.description import map_file, server_folder
from hopper.partition.executor import Executor
from hopper.partition.layout import DividedTopology
from hopper.partition.write import BuildContext
from hopper.partition.write_topology import BY_EDGE
from hopper.timing.phases import Phases, Progress


def divide_topology(
    context: BuildContext, per_server: Sequence[dict[str, Any]], phases: Phases, executor: Executor
) -> dict[str, Any]:
    """Write each server's in-edges, degrees and original ids, and remove the whole arrays; return
    fields of partition.json, and add those of each server to its entry in ``per_server``.

    ``indptr`` of relations with edge features stays, too. The directory must have a folder for each
    server.
    """
    relations, whole = context.graph.schema.relations, context.work / "topology"
    replicated = _sum_bytes(whole, "*.npy")
    edges = sum(kind.count for kind in relations.values())
    with phases.phase("divide the topology (edges)", edges) as counter:
        for relation, kind in relations.items():
            jobs = [(server, relation) for server in range(context.servers)]
            executor.run(_write_lists, context, counter, jobs)
            # Features of edges are stored in the order of the whole indptr.
            rows: list[layout.StoredArray] = ["indptr"] if kind.feature_dim is None else []
            for name in [*_arrays_by_edge(context, relation), *rows]:
                layout.topology_file(context.work, relation, name).unlink()
    _divide_by_node(context)
    for server, entry in enumerate(per_server):
        folder = server_folder(context.work, server) / "topology"
        # Of shared files, the degrees of its nodes, and what is in one file.
        shared = _sum_bytes(whole, f"*-{server}.npy", "indptr.npy")
        entry["topology_bytes"] = _sum_bytes(folder, "*.npy") + shared
    return {"topology": DividedTopology.name, "replicated_topology_bytes": replicated}


def _write_lists(
    context: BuildContext, progress: Progress, server: int, relation: Relation
) -> None:
    """Write a server's lists of a relation; progress advances by edges."""
    folder, own = server_folder(context.work, server), context.own(relation.dst, server)
    indptr = context.whole(relation, "indptr")
    edges = slice(int(indptr[own.start]), int(indptr[own.stop]))
    file = layout.topology_file(folder, relation, "indptr")
    bounds = create_array(file, np.int64, (own.stop - own.start + 1,))
    for first, piece in iter_pieces(indptr[own.start : own.stop + 1]):
        bounds[first : first + piece.size] = piece - edges.start
        release_pages(bounds)
    for name in _arrays_by_edge(context, relation):
        file = layout.topology_file(folder, relation, name)
        save_array(file, context.whole(relation, name)[edges])
    progress.advance(edges.stop - edges.start)


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
