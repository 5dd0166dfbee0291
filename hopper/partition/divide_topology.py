"""Divide the whole topology, so that a server stores the in-edges of its own nodes and its halo.

The halo are the nodes within some hops of a server's own nodes along in-edges of all relations.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.errors import RequestError
from hopper.graph import layout
from hopper.graph.array_file import array_bytes, create_array, release_pages
from hopper.graph.publish import require_space
from hopper.graph.row_ranges import row_ranges
from hopper.graph.schema import Relation
from hopper.partition.build_context import BuildContext
from hopper.partition.executor import Executor
from hopper.partition.file_names import server_folder
from hopper.partition.write_topology import BY_EDGE
from hopper.phases import Phases, Progress

Counts = NDArray[np.int64]
Servers = NDArray[np.uint8]
"""[nodes, ceil(servers / 8)] uint8: a set of servers for each node, a bit for each server."""
_MOST_HOPS: Final = 1 << 16


class TopologyChoice(NamedTuple):
    """The way in which topology is divided.

    Attributes
    ----------
    name: "replicated": every server has all edges; "partitioned": a server has the in-edges of its
        own nodes and its halo.
    halo: number of hops of the halo.
    """

    name: Literal["replicated", "partitioned"]
    halo: int = 0

    @classmethod
    def parse(cls, text: str) -> TopologyChoice:
        """Parse "replicated", "partitioned" or "halo:K"; "halo:0" is "partitioned".

        Raises
        ------
        RequestError: it is none of these.
        """
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


class StoredLists:
    """The nodes whose in-edges each server stores; at first its own nodes."""

    def __init__(self, context: BuildContext) -> None:
        self._context = context
        self._by_type: dict[str, Servers] = {}
        servers = context.servers
        for node_type, bounds in context.offsets.items():
            servers_of_node = np.zeros((int(bounds[-1]), (servers + 7) // 8), np.uint8)
            for server in range(servers):
                servers_of_node[bounds[server] : bounds[server + 1], server // 8] = 1 << server % 8
            self._by_type[node_type] = servers_of_node

    def widen(self, progress: Progress) -> None:
        """Widen the halo by a hop, to the sources of all stored edges; progress advances by
        edges."""
        reached = {node_type: near.copy() for node_type, near in self._by_type.items()}
        for relation in self._context.graph.schema.relations:
            near = self._by_type[relation.dst]
            indptr = self._context.whole(relation, "indptr")
            indices = self._context.whole(relation, "indices")
            for first, last in row_ranges(indptr, 0, near.shape[0]):
                _mark_sources(first, last, indptr, indices, near, reached[relation.src])
                release_pages(indptr, indices)
                progress.advance(int(indptr[last] - indptr[first]))
        self._by_type = reached

    def of_server(self, node_type: str, server: int) -> NDArray[np.uint8]:
        """Return a bit for each global id (numpy.packbits): whether a server stores its
        in-edges."""
        return np.packbits(self._by_type[node_type][:, server // 8] & 1 << server % 8)

    def count_nodes(self) -> Counts:
        """Return [servers] int64: number of nodes of all types whose in-edges each stores."""
        counts = np.zeros(self._context.servers, np.int64)
        for stored in self._by_type.values():
            _count_stored(stored, np.ones(stored.shape[0], np.int64), counts)
        return counts

    def count_edges(self) -> dict[Relation, Counts]:
        """Return [servers] int64 by relation: number of edges that each server stores."""
        counts = {}
        for relation in self._context.graph.schema.relations:
            counts[relation] = np.zeros(self._context.servers, np.int64)
            stored = self._by_type[relation.dst]
            indptr = self._context.whole(relation, "indptr")
            for first, last in row_ranges(indptr, 0, stored.shape[0]):
                lengths = np.diff(indptr[first : last + 1])
                _count_stored(stored[first:last], lengths, counts[relation])
        return counts


@kernel
def _mark_sources(
    first: int,
    last: int,
    indptr: Counts,
    indices: NDArray[Any],
    near: Servers,
    reached: Servers,
) -> None:
    for node in range(first, last):
        for byte in range(near.shape[1]):
            if near[node, byte]:
                for edge in range(indptr[node], indptr[node + 1]):
                    reached[indices[edge], byte] |= near[node, byte]


@kernel
def _count_stored(stored: Servers, sizes: Counts, counts: Counts) -> None:
    for node in range(sizes.size):
        for server in range(counts.size):
            if stored[node, server >> 3] >> (server & 7) & 1:
                counts[server] += sizes[node]


def divide_topology(
    context: BuildContext, choice: TopologyChoice, phases: Phases, executor: Executor
) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """Write each server's in-edges, and remove the whole topology; return fields of partition.json,
    and for each server those of its entry in "per_server".

    Degrees stay where all servers read them, and so does ``indptr`` of relations with edge
    features. The directory must have a folder for each server.

    Raises
    ------
    RequestError: the disk has too little space. The text has the bytes needed and available.
    """
    relations, lists = context.graph.schema.relations, StoredLists(context)
    replicated, sizes = _folder_bytes(context), {r: _list_bytes(context, r) for r in relations}
    own_nodes, own_edges = lists.count_nodes(), lists.count_edges()
    edges_read = choice.halo * sum(kind.count for kind in relations.values())
    with phases.phase("find the halos (edges)", edges_read) as counter:
        for _ in range(choice.halo):
            lists.widen(counter)
        edges = lists.count_edges()
    used = most = 0
    for relation, (fixed, per_edge) in sizes.items():
        used += context.servers * fixed + per_edge * int(edges[relation].sum())
        most = max(most, used)
        # Then the relation is removed from the whole topology.
        used -= fixed + per_edge * context.edges(relation)
    require_space(context.work.parent, most)
    total, own = (np.sum([*counts.values()], axis=0) for counts in (edges, own_edges))
    with phases.phase("divide the topology (edges)", int(total.sum())) as counter:
        for relation, kind in relations.items():
            jobs = [
                (server, relation, lists.of_server(relation.dst, server), count)
                for server, count in enumerate(edges[relation].tolist())
            ]
            executor.run(_write_lists, context, counter, jobs)
            # Features of edges are stored in the order of the whole indptr.
            rows: list[layout.StoredArray] = ["indptr"] if kind.feature_dim is None else []
            for name in [*_arrays_by_edge(context, relation), *rows]:
                layout.topology_file(context.work, relation, name).unlink()
    shared, fixed_bytes = _folder_bytes(context), sum(fixed for fixed, _ in sizes.values())
    stored, without_halo = (
        shared + fixed_bytes + sum(counts[r] * per_edge for r, (_, per_edge) in sizes.items())
        for counts in (edges, own_edges)
    )
    columns = {
        "halo_nodes": lists.count_nodes() - own_nodes,
        "halo_edges": total - own,
        "topology_bytes": stored,
        "topology_bytes_without_halo": without_halo,
    }
    fields = {
        "topology": choice.name,
        "halo": choice.halo,
        "replicated_topology_bytes": replicated,
    }
    return fields, [
        {name: int(counts[server]) for name, counts in columns.items()}
        for server in range(context.servers)
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
