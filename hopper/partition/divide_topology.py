"""Divide the whole topology, so that a server stores the in-edges of its own nodes and its halo.

The halo are the nodes within some hops of a server's own nodes along in-edges of all relations.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph import layout
from hopper.graph.array_file import array_bytes, create_array, release_pages
from hopper.graph.memory_budget import row_ranges
from hopper.graph.publish import require_space
from hopper.graph.schema import Relation
from hopper.partition.build_context import BuildContext
from hopper.partition.executor import Executor
from hopper.partition.file_names import server_folder
from hopper.partition.write_topology import BY_EDGE
from hopper.phases import Phases, Progress, Silent

_MOST_HOPS: Final = 1 << 16


class TopologyChoice(NamedTuple):
    """The way in which topology is divided."""

    name: Literal["replicated", "partitioned"]
    """whether every server has all edges, or the in-edges of its own nodes and its halo"""
    halo: int = 0
    """number of hops of the halo"""

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
    nodes: int
    edges: dict[Relation, int]


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
    return _Stored(
        {name: np.packbits(is_near) for name, is_near in near.items()},
        sum(int(is_near.sum()) for is_near in near.values()),
        {r: int(context.whole(r, "in_degrees").sum(where=near[r.dst])) for r in relations},
    )


def divide_topology(
    context: BuildContext, choice: TopologyChoice, phases: Phases, executor: Executor
) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """Write each server's in-edges, and remove the whole topology; return fields of partition.json,
    and for each server those of its entry in "per_server".

    Degrees stay where all servers read them, and so does ``indptr`` of relations with edge
    features. The directory must have a folder for each server.
    """
    relations, servers = context.graph.schema.relations, range(context.servers)
    replicated, sizes = _folder_bytes(context), {r: _list_bytes(context, r) for r in relations}
    own = [_find_stored(context, Silent(), server, 0) for server in servers]
    edges_read = choice.halo * len(servers) * sum(kind.count for kind in relations.values())
    with phases.phase("find the halos (edges)", edges_read) as counter:
        stored = executor.run(
            _find_stored, context, counter, [(server, choice.halo) for server in servers]
        )
    used = most = 0
    for relation, (fixed, per_edge) in sizes.items():
        used += sum(fixed + per_edge * part.edges[relation] for part in stored)
        most = max(most, used)
        # Then the relation is removed from the whole topology.
        used -= fixed + per_edge * context.edges(relation)
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
    shared = _folder_bytes(context) + sum(fixed for fixed, _ in sizes.values())

    def bytes_of(part: _Stored) -> int:
        return shared + sum(sizes[relation][1] * count for relation, count in part.edges.items())

    fields = {
        "topology": choice.name,
        "halo": choice.halo,
        "replicated_topology_bytes": replicated,
    }
    return fields, [
        {
            "halo_nodes": near.nodes - alone.nodes,
            "halo_edges": sum(near.edges.values()) - sum(alone.edges.values()),
            "topology_bytes": bytes_of(near),
            "topology_bytes_without_halo": bytes_of(alone),
        }
        for near, alone in zip(stored, own, strict=True)
    ]


def _folder_bytes(context: BuildContext) -> int:
    """Return the bytes of the topology that all servers read."""
    return sum(file.stat().st_size for file in (context.work / "topology").rglob("*.npy"))


def _list_bytes(context: BuildContext, relation: Relation) -> tuple[int, int]:
    """Return the bytes of a relation's lists without edges, and for each edge."""
    dtypes = [context.whole(relation, name).dtype for name in _arrays_by_edge(context, relation)]
    rows = int(context.offsets[relation.dst][-1]) + 1
    fixed = array_bytes(np.int64, (rows,)) + sum(array_bytes(dtype, (0,)) for dtype in dtypes)
    return fixed, sum(dtype.itemsize for dtype in dtypes)


def _write_lists(
    context: BuildContext,
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
    indptr, folder = context.whole(relation, "indptr"), server_folder(context.work, server)
    bounds = create_array(layout.topology_file(folder, relation, "indptr"), np.int64, indptr.shape)
    copies = []
    for name in _arrays_by_edge(context, relation):
        whole = context.whole(relation, name)
        file = layout.topology_file(folder, relation, name)
        copies.append((whole, create_array(file, whole.dtype, (edges,))))
    for first, last in row_ranges(indptr, 0, indptr.size - 1):
        bits = np.unpackbits(is_stored[first // 8 : (last + 7) // 8])[first % 8 :]
        is_listed = bits[: last - first].astype(np.bool_)
        counts = np.diff(indptr[first : last + 1])
        np.cumsum(counts * is_listed, out=bounds[first + 1 : last + 1])
        bounds[first + 1 : last + 1] += bounds[first]
        target = slice(int(bounds[first]), int(bounds[last]))
        source = slice(int(indptr[first]), int(indptr[last]))
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
