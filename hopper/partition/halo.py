"""Find the nodes whose in-edges each server stores, where topology is partitioned.

They are its own nodes and its halo: the nodes within some hops of them along in-edges of all
relations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.errors import RequestError
from hopper.graph.array_file import release_pages
from hopper.graph.memory_budget import row_ranges
from hopper.graph.schema import Relation
from hopper.partition.whole_topology import open_indices, open_indptr
from hopper.phases import Progress

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
        if text == "partitioned":
            return cls("partitioned")
        match = re.fullmatch(r"halo:([0-9]{1,9})", text)
        if match is None or int(match[1]) > _MOST_HOPS:
            raise RequestError(
                "topology: expected replicated, partitioned, or halo:K with a number K of hops up "
                f"to {_MOST_HOPS}, given {text!r:.100}"
            )
        return cls("partitioned", int(match[1]))


class StoredLists:
    """The nodes whose in-edges each server stores; at first its own nodes.

    Parameters
    ----------
    offsets: by node type [servers + 1] int64, bounds of the global ids of each server's own nodes.
    """

    def __init__(self, offsets: Mapping[str, NDArray[np.int64]]) -> None:
        self.servers = next(iter(offsets.values())).size - 1
        self._by_type: dict[str, Servers] = {}
        for node_type, bounds in offsets.items():
            servers_of_node = np.zeros((int(bounds[-1]), (self.servers + 7) // 8), np.uint8)
            for server in range(self.servers):
                servers_of_node[bounds[server] : bounds[server + 1], server // 8] = 1 << server % 8
            self._by_type[node_type] = servers_of_node

    def widen(self, folder: Path, relations: Mapping[Relation, int], progress: Progress) -> None:
        """Widen the halo by a hop, to the sources of all stored edges; progress advances by edges.

        Parameters
        ----------
        folder: the folder of the whole topology, in global ids.
        relations: number of edges of each relation.
        """
        reached = {node_type: near.copy() for node_type, near in self._by_type.items()}
        for relation, edges in relations.items():
            near = self._by_type[relation.dst]
            indptr = open_indptr(folder, relation, near.shape[0])
            indices = open_indices(folder, relation, edges)
            for first, last in row_ranges(indptr, 0, near.shape[0]):
                _mark_sources(first, last, indptr, indices, near, reached[relation.src])
                release_pages(indptr, indices)
                progress.advance(int(indptr[last] - indptr[first]))
        self._by_type = reached

    def of_server(self, node_type: str, server: int) -> NDArray[np.uint8]:
        """Return a bit for each global id (numpy.packbits): whether a server stores its
        in-edges."""
        byte = self._by_type[node_type][:, server // 8]
        return np.packbits(byte & 1 << server % 8)

    def count_nodes(self) -> NDArray[np.int64]:
        """Return [servers] int64: number of nodes of all types whose in-edges each server
        stores."""
        counts = np.zeros(self.servers, np.int64)
        for stored in self._by_type.values():
            _count_stored(stored, np.ones(stored.shape[0], np.int64), counts)
        return counts

    def count_edges(self, relation: Relation, folder: Path) -> NDArray[np.int64]:
        """Return [servers] int64: number of edges of a relation that each server stores.

        Parameters
        ----------
        folder: the folder of the whole topology, in global ids.
        """
        stored, counts = self._by_type[relation.dst], np.zeros(self.servers, np.int64)
        indptr = open_indptr(folder, relation, stored.shape[0])
        for first, last in row_ranges(indptr, 0, stored.shape[0]):
            _count_stored(stored[first:last], np.diff(indptr[first : last + 1]), counts)
        return counts


@kernel
def _mark_sources(
    first: int,
    last: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    near: Servers,
    reached: Servers,
) -> None:
    for node in range(first, last):
        for byte in range(near.shape[1]):
            if near[node, byte]:
                for edge in range(indptr[node], indptr[node + 1]):
                    reached[indices[edge], byte] |= near[node, byte]


@kernel
def _count_stored(stored: Servers, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    for node in range(sizes.size):
        for server in range(counts.size):
            if stored[node, server >> 3] >> (server & 7) & 1:
                counts[server] += sizes[node]
