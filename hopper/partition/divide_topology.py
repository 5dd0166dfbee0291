"""Divide the whole topology, so that a server stores the in-edges of its own nodes and its halo.

The halo are the nodes within some hops of a server's own nodes along in-edges of all relations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.store.npy import shard_file
from hopper.errors import RequestError
from hopper.graph import layout
from hopper.graph.array_file import (
    create_array,
    iter_pieces,
    open_array,
    release_pages,
    save_array,
)
from hopper.graph.memory_budget import row_ranges
from hopper.graph.publish import require_space
from hopper.graph.schema import Relation
from hopper.partition.build_context import BuildContext
from hopper.partition.executor import Executor
from hopper.partition.file_names import listed_file, map_file, server_folder
from hopper.partition.write_topology import BY_EDGE
from hopper.timing.phases import Phases, Progress

_MOST_HOPS: Final = 1 << 16


class TopologyChoice(NamedTuple):
    """Whether every server has all edges, or those into its nodes and a halo of some hops."""

    name: Literal["replicated", "partitioned"]
    halo: int = 0

    @classmethod
    def parse(cls, text: str) -> TopologyChoice:
        """Parse "replicated", "partitioned" or "halo:K"; "halo:0" is "partitioned"."""
        if text == "replicated":
            return cls("replicated")
        match = re.fullmatch(r"partitioned|halo:([0-9]{1,9})", text)
        hops = int(match[1] or 0) if match else 0
        if match is None or hops > _MOST_HOPS:
            raise RequestError(
                "topology: expected replicated, partitioned, or halo:K with a number K of hops up "
                f"to {_MOST_HOPS}, given {text!r:.100}"
            )
        return cls("partitioned", hops)


class _Stored(NamedTuple):
    """The nodes whose in-edges a server stores."""

    bits: dict[str, NDArray[np.uint8]]
    """a bit for each global id of a type (numpy.packbits)"""
    nodes: dict[str, int]
    edges: dict[Relation, int]
    halo_nodes: dict[str, int]
    halo_edges: dict[Relation, int]


def _find_stored(context: BuildContext, progress: Progress, server: int, hops: int) -> _Stored:
    """Find a server's own nodes and those within some hops, along in-edges of all relations;
    progress advances by edges."""
    relations, near = context.graph.schema.relations, dict[str, NDArray[np.bool_]]()
    for name, bounds in context.offsets.items():
        near[name] = np.zeros(int(bounds[-1]), np.bool_)
        near[name][bounds[server] : bounds[server + 1]] = True
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
    edges = {r: int(context.whole(r, "in_degrees").sum(where=near[r.dst])) for r in relations}
    own = {name: of_type[server : server + 2] for name, of_type in context.offsets.items()}
    own_edges = {r: int(np.diff(context.whole(r, "indptr")[own[r.dst]])[0]) for r in relations}
    return _Stored(
        {name: np.packbits(is_near) for name, is_near in near.items()},
        nodes,
        edges,
        {name: count - int(np.diff(own[name])[0]) for name, count in nodes.items()},
        {relation: count - own_edges[relation] for relation, count in edges.items()},
    )


def divide_topology(
    context: BuildContext, choice: TopologyChoice, phases: Phases, executor: Executor
) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """Write each server's in-edges, degrees and original ids, and remove the whole arrays; return
    fields of partition.json, and for each server those of its entry in "per_server".

    ``indptr`` of relations with edge features stays, too. The directory must have a folder for each
    server.
    """
    relations, servers = context.graph.schema.relations, range(context.servers)
    replicated = _sum_bytes((context.work / "topology").rglob("*.npy"))
    edges_read = choice.halo * len(servers) * sum(kind.count for kind in relations.values())
    with phases.phase("find the halos (edges)", edges_read) as counter:
        stored = executor.run(
            _find_stored, context, counter, [(server, choice.halo) for server in servers]
        )
    edge_bytes = {
        r: sum(context.whole(r, name).dtype.itemsize for name in _arrays_by_edge(context, r))
        for r in relations
    }
    used = most = 0
    for relation, nbytes in edge_bytes.items():
        used += sum(8 * s.nodes[relation.dst] + nbytes * s.edges[relation] for s in stored)
        most = max(most, used)
        # Then the relation is removed from the whole topology.
        used -= nbytes * context.edges(relation)
    require_space(context.work.parent, most)
    total = sum(sum(part.edges.values()) for part in stored)
    with phases.phase("divide the topology (edges)", total) as counter:
        for relation, kind in relations.items():
            jobs = [
                (server, relation, part.bits[relation.dst], part.edges[relation])
                for server, part in enumerate(stored)
            ]
            executor.run(_write_lists, context, counter, jobs)
            # Features of edges are stored in the order of the whole indptr.
            rows: list[layout.StoredArray] = ["indptr"] if kind.feature_dim is None else []
            for name in [*_arrays_by_edge(context, relation), *rows]:
                layout.topology_file(context.work, relation, name).unlink()
    _divide_by_node(context)
    fields = {"topology": choice.name, "halo": choice.halo, "replicated_topology_bytes": replicated}
    entries = []
    for server, part in enumerate(stored):
        folder, whole = server_folder(context.work, server), context.work / "topology"
        for node_type, count in part.nodes.items() if choice.halo else ():
            ids = create_array(listed_file(folder, node_type), np.int64, (count,))
            _write_ids(part.bits[node_type], ids)
        halo_bytes = _sum_bytes((folder / "topology").glob("*.npy"))
        halo_bytes += sum(
            8 * part.halo_nodes[relation.dst] + nbytes * part.halo_edges[relation]
            for relation, nbytes in edge_bytes.items()
        )
        # Of shared files, the degrees of its nodes, and what is in one file.
        nbytes = _sum_bytes((folder / "topology").rglob("*.npy"))
        nbytes += _sum_bytes(whole.rglob(f"*-{server}.npy")) + _sum_bytes(whole.rglob("indptr.npy"))
        entries.append(
            {
                "halo_nodes": sum(part.halo_nodes.values()),
                "halo_edges": sum(part.halo_edges.values()),
                "topology_bytes": nbytes,
                "topology_bytes_without_halo": nbytes - halo_bytes,
            }
        )
    return fields, entries


def _write_ids(bits: NDArray[np.uint8], out: NDArray[np.int64]) -> None:
    """Write the ids that have a bit, ascending."""
    row = 0
    for first, piece in iter_pieces(bits, 1 << 16):
        ids = np.flatnonzero(np.unpackbits(piece))
        out[row : row + ids.size] = ids + 8 * first
        row += ids.size


def _sum_bytes(files: Iterator[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _divide_by_node(context: BuildContext) -> None:
    """Write the degrees and original ids of each server's nodes to files of their own."""
    files = [(map_file(context.work, name, "original_ids"), name) for name in context.offsets]
    for relation in context.graph.schema.relations:
        files.append((layout.topology_file(context.work, relation, "in_degrees"), relation.dst))
        files.append((layout.topology_file(context.work, relation, "out_degrees"), relation.src))
    for file, node_type in files:
        bounds = context.offsets[node_type].tolist()
        whole = open_array(file, file.stem, np.int64, (bounds[-1],))
        for server, (first, stop) in enumerate(pairwise(bounds)):
            save_array(shard_file(file, server), whole[first:stop])
        file.unlink()


def _write_lists(
    context: BuildContext,
    progress: Progress,
    server: int,
    relation: Relation,
    is_stored: NDArray[np.uint8],
    edges: int,
) -> None:
    """Write a server's lists of a relation, those of destinations with a bit in ``is_stored``
    (numpy.packbits), of so many edges in all; progress advances by edges."""
    indptr, folder = context.whole(relation, "indptr"), server_folder(context.work, server)
    lists = int(np.unpackbits(is_stored).sum())
    bounds = create_array(layout.topology_file(folder, relation, "indptr"), np.int64, (lists + 1,))
    copies = []
    for name in _arrays_by_edge(context, relation):
        whole = context.whole(relation, name)
        file = layout.topology_file(folder, relation, name)
        copies.append((whole, create_array(file, whole.dtype, (edges,))))
    row = 0
    for first, last in row_ranges(indptr, 0, indptr.size - 1):
        bits = np.unpackbits(is_stored[first // 8 : (last + 7) // 8])[first % 8 :]
        is_listed = bits[: last - first].astype(np.bool_)
        counts = np.diff(indptr[first : last + 1])
        rows = slice(row + 1, row + 1 + int(is_listed.sum()))
        np.cumsum(counts[is_listed], out=bounds[rows])
        bounds[rows] += bounds[row]
        target = slice(int(bounds[row]), int(bounds[rows.stop - 1]))
        source, row = slice(int(indptr[first]), int(indptr[last])), rows.stop - 1
        if target.start < target.stop:
            is_part = target.stop - target.start < source.stop - source.start
            chosen = np.repeat(is_listed, counts) if is_part else slice(None)
            for whole, out in copies:
                out[target] = whole[source][chosen]
                release_pages(whole, out)
        release_pages(indptr, bounds)
        progress.advance(target.stop - target.start)


def _arrays_by_edge(context: BuildContext, relation: Relation) -> list[layout.StoredArray]:
    return [*BY_EDGE, *layout.draw_arrays(context.graph.schema, relation)]
