"""Tell which rank owns each node, for every layout of a graph.

The partition book tells a node's server; this module deals a server's nodes to its ranks. The rank
that owns a node trains it as a root, keeps its learnable row, and computes its layers under
``cooperative`` and in evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.partition.book import PartitionBook

Ids = NDArray[np.int64]
RANK_DTYPE: Final = np.uint16
"""dtype on disk of a node's rank among those of its server."""


class Dealing(Protocol):
    """Deals the nodes of a server to its ranks, by its arguments alone, so alike on all ranks."""

    name: str
    """name by which a checkpoint tells how it was dealt"""

    def local_rank(self, node_type: str, servers: Ids, rows: Ids, ranks: int) -> Ids:
        """Return [n] int64 below ``ranks``: the rank of its server that owns each local row."""
        ...

    def local_index(self, node_type: str, servers: Ids, rows: Ids, ranks: int) -> Ids:
        """Return [n] int64: each local row's index among the rows of its rank, which ascend."""
        ...

    def rows(self, node_type: str, server: int, rank: int, ranks: int, count: int) -> Ids:
        """Return [m] int64, ascending: the local rows below ``count`` that a rank owns."""
        ...


class RoundRobin:
    """Deals row r to rank r modulo the number of ranks, so that shares are even."""

    name = "in turn"

    def local_rank(self, node_type: str, servers: Ids, rows: Ids, ranks: int) -> Ids:
        """Return [n] int64: the rank of its server that owns each local row."""
        return rows % ranks

    def local_index(self, node_type: str, servers: Ids, rows: Ids, ranks: int) -> Ids:
        """Return [n] int64: each local row's index among the rows of its rank."""
        return rows // ranks

    def rows(self, node_type: str, server: int, rank: int, ranks: int, count: int) -> Ids:
        """Return [m] int64, ascending: the local rows that a rank owns."""
        return np.arange(rank, count, ranks, dtype=np.int64)


class ByLocality(RoundRobin):
    """Deals nodes by the partition's second level, so that nodes sampled together share a rank.

    Tables that are not of nodes (edges, learnable rows of several servers) are dealt in turn.
    ``ranks_of`` has by node type [count] unsigned integers: the rank of its server that owns each
    node, by global id.
    """

    name = "by locality"

    def __init__(self, book: PartitionBook, ranks_of: Mapping[str, NDArray[Any]]) -> None:
        self._book = book
        self._ranks_of = ranks_of
        self._indices: dict[tuple[str, int], NDArray[np.int32]] = {}

    def local_rank(self, node_type: str, servers: Ids, rows: Ids, ranks: int) -> Ids:
        """Return [n] int64: the rank of its server that owns each local row."""
        if node_type not in self._ranks_of:
            return super().local_rank(node_type, servers, rows, ranks)
        ids = self._book.offsets[node_type][servers] + rows
        return self._ranks_of[node_type][ids].astype(np.int64)

    def local_index(self, node_type: str, servers: Ids, rows: Ids, ranks: int) -> Ids:
        """Return [n] int64: each local row's index among the rows of its rank."""
        if node_type not in self._ranks_of:
            return super().local_index(node_type, servers, rows, ranks)
        indices = np.empty(rows.size, np.int64)
        for server in np.unique(servers).tolist():
            on_server = servers == server
            indices[on_server] = self._indices_on(node_type, server)[rows[on_server]]
        return indices

    def rows(self, node_type: str, server: int, rank: int, ranks: int, count: int) -> Ids:
        """Return [m] int64, ascending: the local rows that a rank owns."""
        if node_type not in self._ranks_of:
            return super().rows(node_type, server, rank, ranks, count)
        return np.flatnonzero(self._on_server(node_type, server) == rank)

    def _on_server(self, node_type: str, server: int) -> NDArray[Any]:
        return self._ranks_of[node_type][slice(*self._book.range(node_type, server))]

    def _indices_on(self, node_type: str, server: int) -> NDArray[np.int32]:
        """Return [nodes of the server] int32: indices among the rows of a rank, computed once."""
        if (node_type, server) not in self._indices:
            ranks = self._on_server(node_type, server)
            indices = np.empty(ranks.size, np.int32)
            for rank in np.unique(ranks):
                rows = np.flatnonzero(ranks == rank)
                indices[rows] = np.arange(rows.size, dtype=np.int32)
            self._indices[node_type, server] = indices
        return self._indices[node_type, server]


@dataclass(frozen=True)
class ByRank:
    """Distinct nodes of a type, grouped by the rank that owns them."""

    nodes: Ids
    """[n] int64 global ids, those of rank 0 first, ascending for each rank"""
    bounds: Ids
    """[ranks + 1] int64, bounds of each rank's nodes"""

    def of(self, rank: int) -> Ids:
        """Return [m] int64, ascending: the nodes of a rank."""
        return self.nodes[self.bounds[rank] : self.bounds[rank + 1]]

    def parts(self) -> list[Ids]:
        """Return the nodes of every rank."""
        return np.split(self.nodes, self.bounds[1:-1])

    @property
    def counts(self) -> list[int]:
        """Number of nodes of every rank."""
        counts: list[int] = np.diff(self.bounds).tolist()
        return counts


class Placement:
    """Tells which rank owns each node, with any number of ranks a server.

    An unknown node type, or an id that is out of range, is a :class:`GraphError`.

    Parameters
    ----------
    book: the servers of nodes.
    ranks_per_server: number of ranks of a server; ranks are numbered server by server.
    dealing: deals a server's nodes to its ranks; None = in turn.
    """

    def __init__(
        self, book: PartitionBook, ranks_per_server: int, dealing: Dealing | None = None
    ) -> None:
        self.book = book
        self.ranks_per_server = ranks_per_server
        self.world = book.servers * ranks_per_server
        self.dealing: Dealing = RoundRobin() if dealing is None else dealing

    def of_tables(self, offsets: Mapping[str, Ids]) -> Placement:
        """Make a placement, with the same dealing, of tables with other offsets, by table."""
        book = PartitionBook(self.book.servers, offsets, "tables of learnable rows")
        return Placement(book, self.ranks_per_server, self.dealing)

    def rank_of(self, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64: the rank that owns each node."""
        servers = self.book.home(node_type, ids)
        if self.ranks_per_server == 1:
            return servers
        rows = ids - self.book.offsets[node_type][servers]
        ranks = self.dealing.local_rank(node_type, servers, rows, self.ranks_per_server)
        return servers * self.ranks_per_server + ranks

    def place_of(self, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64: each node's index in :meth:`owned` of its rank."""
        servers = self.book.home(node_type, ids)
        rows = ids - self.book.offsets[node_type][servers]
        if self.ranks_per_server == 1:
            return rows
        return self.dealing.local_index(node_type, servers, rows, self.ranks_per_server)

    def owned(self, node_type: str, rank: int) -> Ids:
        """Return [n] int64 global ids, ascending: the nodes that a rank owns."""
        server, local_rank = divmod(rank, self.ranks_per_server)
        first, stop = self.book.range(node_type, server)
        if self.ranks_per_server == 1:
            return np.arange(first, stop)
        ranks, count = self.ranks_per_server, stop - first
        return first + self.dealing.rows(node_type, server, local_rank, ranks, count)

    def deal(self, node_type: str, ids: Ids) -> ByRank:
        """Group distinct nodes by the rank that owns them, in the order of ``ids`` within a
        rank."""
        owners = self.rank_of(node_type, ids)
        bounds = np.zeros(self.world + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=self.world), out=bounds[1:])
        return ByRank(ids[np.argsort(owners, kind="stable")], bounds)
