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
    """Deals the nodes of a server to its ranks.

    It depends on its arguments alone, so all ranks get the same result.
    """

    name: str
    """name by which a checkpoint tells how it was dealt"""

    def part(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """Return [n] int64 below ``parts``: the rank of its server that owns each local row."""
        ...

    def place(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """Return [n] int64: each local row's index among the rows of its rank, which ascend."""
        ...

    def rows(self, node_type: str, server: int, part: int, parts: int, count: int) -> Ids:
        """Return [m] int64, ascending: the local rows below ``count`` that a rank owns."""
        ...


class InTurn:
    """Deals row r to rank r modulo the number of ranks, so that shares are even."""

    name = "in turn"

    def part(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """Return [n] int64: the rank of its server that owns each local row."""
        return rows % parts

    def place(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """Return [n] int64: each local row's index among the rows of its rank."""
        return rows // parts

    def rows(self, node_type: str, server: int, part: int, parts: int, count: int) -> Ids:
        """Return [m] int64, ascending: the local rows that a rank owns."""
        return np.arange(part, count, parts, dtype=np.int64)


class ByLocality:
    """Deals nodes by the partition's second level, so that nodes sampled together share a rank.

    Tables that are not of nodes (edges, learnable rows of several servers) are dealt in turn.

    Parameters
    ----------
    book: the servers of nodes.
    ranks: by node type [count] unsigned integers: the rank of its server that owns each node, by
        global id.
    """

    name = "by locality"

    def __init__(self, book: PartitionBook, ranks: Mapping[str, NDArray[Any]]) -> None:
        self._book = book
        self._ranks = ranks
        self._in_turn = InTurn()
        self._places: dict[tuple[str, int], NDArray[np.int32]] = {}

    def part(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """Return [n] int64: the rank of its server that owns each local row."""
        if node_type not in self._ranks:
            return self._in_turn.part(node_type, servers, rows, parts)
        ids = self._book.offsets[node_type][servers] + rows
        return self._ranks[node_type][ids].astype(np.int64)

    def place(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """Return [n] int64: each local row's index among the rows of its rank."""
        if node_type not in self._ranks:
            return self._in_turn.place(node_type, servers, rows, parts)
        places = np.empty(rows.size, np.int64)
        for server in np.unique(servers).tolist():
            on_server = servers == server
            places[on_server] = self._find_places(node_type, server)[rows[on_server]]
        return places

    def rows(self, node_type: str, server: int, part: int, parts: int, count: int) -> Ids:
        """Return [m] int64, ascending: the local rows that a rank owns."""
        if node_type not in self._ranks:
            return self._in_turn.rows(node_type, server, part, parts, count)
        return np.flatnonzero(self._of_server(node_type, server) == part)

    def _of_server(self, node_type: str, server: int) -> NDArray[Any]:
        first, stop = self._book.range(node_type, server)
        return self._ranks[node_type][first:stop]

    def _find_places(self, node_type: str, server: int) -> NDArray[np.int32]:
        """Return [nodes of the server] int32: indices among the rows of a rank, computed once."""
        if (node_type, server) not in self._places:
            ranks = self._of_server(node_type, server)
            places = np.empty(ranks.size, np.int32)
            for rank in np.unique(ranks):
                rows = np.flatnonzero(ranks == rank)
                places[rows] = np.arange(rows.size, dtype=np.int32)
            self._places[node_type, server] = places
        return self._places[node_type, server]


@dataclass(frozen=True)
class ByRank:
    """Distinct nodes of a type, grouped by the rank that owns them.

    Attributes
    ----------
    nodes: [n] int64 global ids, those of rank 0 first, ascending for each rank.
    bounds: [ranks + 1] int64, bounds of each rank's nodes in ``nodes``.
    """

    nodes: Ids
    bounds: Ids

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
        self.dealing: Dealing = InTurn() if dealing is None else dealing

    def of_tables(self, offsets: Mapping[str, Ids]) -> Placement:
        """Make a placement, with the same dealing, of tables that are divided in another way.

        Parameters
        ----------
        offsets: offsets by table, as in a partition book.
        """
        book = PartitionBook(self.book.servers, offsets, "tables of learnable rows")
        return Placement(book, self.ranks_per_server, self.dealing)

    def rank_of(self, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64: the rank that owns each node.

        Raises
        ------
        GraphError: the node type is unknown, or an id is out of range.
        """
        servers = self.book.home(node_type, ids)
        if self.ranks_per_server == 1:
            return servers
        rows = ids - self.book.offsets[node_type][servers]
        parts = self.dealing.part(node_type, servers, rows, self.ranks_per_server)
        return servers * self.ranks_per_server + parts

    def place_of(self, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64: each node's index in :meth:`owned` of its rank.

        The errors are those of :meth:`rank_of`.
        """
        servers = self.book.home(node_type, ids)
        rows = ids - self.book.offsets[node_type][servers]
        if self.ranks_per_server == 1:
            return rows
        return self.dealing.place(node_type, servers, rows, self.ranks_per_server)

    def owned(self, node_type: str, rank: int) -> Ids:
        """Return [n] int64 global ids, ascending: the nodes that a rank owns."""
        server, part = divmod(rank, self.ranks_per_server)
        first, stop = self.book.range(node_type, server)
        if self.ranks_per_server == 1:
            return np.arange(first, stop)
        rows = self.dealing.rows(node_type, server, part, self.ranks_per_server, stop - first)
        return first + rows

    def deal(self, node_type: str, ids: Ids) -> ByRank:
        """Group distinct nodes by the rank that owns them, in the order of ``ids`` within a rank.

        Raises
        ------
        GraphError: as :meth:`rank_of`.
        """
        owners = self.rank_of(node_type, ids)
        bounds = np.zeros(self.world + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=self.world), out=bounds[1:])
        return ByRank(ids[np.argsort(owners, kind="stable")], bounds)
