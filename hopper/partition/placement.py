"""Which rank owns which node: the one rule, whatever a graph's layout.

A node's server is the partition book's business; a server's nodes are dealt to its ranks here.
Roots are routed by this rule, learnable rows live by it, and engine ``cooperative`` and evaluation
compute layers by it, so that what a rank computes is what it has.
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
"""of a node's rank among those of its server, on disk"""


class Dealing(Protocol):
    """How the nodes of a type that a server has are dealt to its ranks.

    A function of nothing but its arguments, so that all ranks find the same; one that follows
    locality keeps what is sampled together on one rank.
    """

    name: str
    """what checkpoints are told apart by"""

    def part(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """[n] int64 below ``parts``: which of its server's ranks owns each local row."""
        ...

    def place(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """[n] int64: each local row's place among those of its rank, ascending."""
        ...

    def rows(self, node_type: str, server: int, part: int, parts: int, count: int) -> Ids:
        """[m] int64, ascending: the local rows, of ``count``, that a rank owns."""
        ...


class InTurn:
    """Row after row to rank after rank: shares are even, whatever order nodes are in."""

    name = "in turn"

    def part(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """See :class:`Dealing`."""
        return rows % parts

    def place(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """See :class:`Dealing`."""
        return rows // parts

    def rows(self, node_type: str, server: int, part: int, parts: int, count: int) -> Ids:
        """See :class:`Dealing`."""
        return np.arange(part, count, parts, dtype=np.int64)


class ByLocality:
    """As a second level of the partition says: what is sampled together is kept together.

    Tables that are not of nodes (edges, learnable rows of several servers) are dealt in turn.

    Parameters
    ----------
    book: the servers of nodes.
    ranks: by node type [count] of an unsigned dtype, by global id: which of its server's ranks owns
        each node.
    """

    name = "by locality"

    def __init__(self, book: PartitionBook, ranks: Mapping[str, NDArray[Any]]) -> None:
        self._book = book
        self._ranks = ranks
        self._in_turn = InTurn()
        self._places: dict[tuple[str, int], NDArray[np.int32]] = {}

    def part(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """See :class:`Dealing`."""
        if node_type not in self._ranks:
            return self._in_turn.part(node_type, servers, rows, parts)
        ids = self._book.offsets[node_type][servers] + rows
        return self._ranks[node_type][ids].astype(np.int64)

    def place(self, node_type: str, servers: Ids, rows: Ids, parts: int) -> Ids:
        """See :class:`Dealing`."""
        if node_type not in self._ranks:
            return self._in_turn.place(node_type, servers, rows, parts)
        found = np.empty(rows.size, np.int64)
        for server in np.unique(servers).tolist():
            here = servers == server
            found[here] = self._places_of(node_type, server)[rows[here]]
        return found

    def rows(self, node_type: str, server: int, part: int, parts: int, count: int) -> Ids:
        """See :class:`Dealing`."""
        if node_type not in self._ranks:
            return self._in_turn.rows(node_type, server, part, parts, count)
        return np.flatnonzero(self._of_server(node_type, server) == part)

    def _of_server(self, node_type: str, server: int) -> NDArray[Any]:
        first, stop = self._book.range(node_type, server)
        return self._ranks[node_type][first:stop]

    def _places_of(self, node_type: str, server: int) -> NDArray[np.int32]:
        """[nodes of the server] int32: places among those of the same rank, made when first asked
        for."""
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
    """Distinct nodes of a type, those of rank 0 first.

    Attributes
    ----------
    nodes: [n] int64 global ids, ascending for each rank.
    bounds: [ranks + 1] int64: where each rank's begin in ``nodes``.
    """

    nodes: Ids
    bounds: Ids

    def of(self, rank: int) -> Ids:
        """[m] int64, ascending: those of one rank."""
        return self.nodes[self.bounds[rank] : self.bounds[rank + 1]]

    def parts(self) -> list[Ids]:
        """By rank, :meth:`of`."""
        return np.split(self.nodes, self.bounds[1:-1])

    @property
    def counts(self) -> list[int]:
        """By rank, how many there are."""
        counts: list[int] = np.diff(self.bounds).tolist()
        return counts


class Placement:
    """Who owns what, with any number of ranks a server.

    Parameters
    ----------
    book: the servers of nodes.
    ranks_per_server: ranks are numbered server by server.
    dealing: of a server's nodes to its ranks; None = in turn.
    """

    def __init__(
        self, book: PartitionBook, ranks_per_server: int, dealing: Dealing | None = None
    ) -> None:
        self.book = book
        self.ranks_per_server = ranks_per_server
        self.world = book.servers * ranks_per_server
        self.dealing: Dealing = InTurn() if dealing is None else dealing

    def of_tables(self, offsets: Mapping[str, Ids]) -> Placement:
        """The same rule for tables of rows whose servers are not those of the nodes.

        Parameters
        ----------
        offsets: by table, as a book's.
        """
        book = PartitionBook(self.book.servers, offsets, "tables of learnable rows")
        return Placement(book, self.ranks_per_server, self.dealing)

    def rank_of(self, node_type: str, ids: Ids) -> Ids:
        """[n] int64: the rank that owns each node.

        Raises
        ------
        GraphError: an unknown node type, or an id outside it.
        """
        servers = self.book.home(node_type, ids)
        if self.ranks_per_server == 1:
            return servers
        rows = ids - self.book.offsets[node_type][servers]
        parts = self.dealing.part(node_type, servers, rows, self.ranks_per_server)
        return servers * self.ranks_per_server + parts

    def place_of(self, node_type: str, ids: Ids) -> Ids:
        """[n] int64: each node's place among those of its rank, :meth:`owned`; errors as of
        :meth:`rank_of`."""
        servers = self.book.home(node_type, ids)
        rows = ids - self.book.offsets[node_type][servers]
        if self.ranks_per_server == 1:
            return rows
        return self.dealing.place(node_type, servers, rows, self.ranks_per_server)

    def owned(self, node_type: str, rank: int) -> Ids:
        """[n] int64 global ids, ascending: the nodes that a rank owns."""
        server, part = divmod(rank, self.ranks_per_server)
        first, stop = self.book.range(node_type, server)
        if self.ranks_per_server == 1:
            return np.arange(first, stop)
        rows = self.dealing.rows(node_type, server, part, self.ranks_per_server, stop - first)
        return first + rows

    def deal(self, node_type: str, ids: Ids) -> ByRank:
        """Distinct nodes by the rank that owns them; of each, in ascending order if they were.

        Raises
        ------
        GraphError: as of :meth:`rank_of`.
        """
        owners = self.rank_of(node_type, ids)
        bounds = np.zeros(self.world + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=self.world), out=bounds[1:])
        return ByRank(ids[np.argsort(owners, kind="stable")], bounds)
