"""Tell which rank owns each node, for every layout of a graph.

The partition book tells a node's server; a placement deals a server's nodes to its ranks. The rank
that owns a node trains it as a root, keeps its learnable row, and computes its layers under
``cooperative`` and in evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.partition.book import PartitionBook

Ids = NDArray[np.int64]
RANK_DTYPE: Final = np.uint16
"""dtype on disk of a node's rank among those of its server."""


@dataclass(frozen=True)
class ByRank:
    """Distinct nodes of a type, grouped by the rank that owns them."""

    nodes: Ids
    """[n] int64 global ids, those of rank 0 first, ascending for each rank"""
    bounds: Ids
    """[ranks + 1] int64, where the nodes of each rank begin and end"""

    def of(self, rank: int) -> Ids:
        """Return the nodes of a rank."""
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
    ranks_of: the partition's second level: by node type [count] unsigned integers, the rank of its
        server that owns each node, by global id. Nodes of other tables are dealt in turn.

    Attributes
    ----------
    dealing: "by locality" with ``ranks_of``, else "in turn"; checkpoints and caches compare it.
    """

    def __init__(
        self,
        book: PartitionBook,
        ranks_per_server: int,
        ranks_of: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.book = book
        self.ranks_per_server = ranks_per_server
        self.world = book.servers * ranks_per_server
        self.dealing = "by locality" if ranks_of else "in turn"
        self._ranks_of = ranks_of or {}
        self._indices: dict[tuple[str, int], NDArray[np.int32]] = {}

    def of_tables(self, offsets: Mapping[str, Ids]) -> Placement:
        """Make a placement, with the same dealing, of tables with other offsets, by table."""
        book = PartitionBook(self.book.servers, offsets, "tables of learnable rows")
        return Placement(book, self.ranks_per_server, self._ranks_of)

    def rank_of(self, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64: the rank that owns each node."""
        servers = self.book.home(node_type, ids)
        if self.ranks_per_server == 1:
            return servers
        if node_type in self._ranks_of:
            ranks = self._ranks_of[node_type][ids].astype(np.int64)
        else:
            ranks = (ids - self.book.offsets[node_type][servers]) % self.ranks_per_server
        return servers * self.ranks_per_server + ranks

    def place_of(self, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64: each node's index in :meth:`owned` of its rank."""
        servers = self.book.home(node_type, ids)
        rows = ids - self.book.offsets[node_type][servers]
        if node_type not in self._ranks_of:
            return rows // self.ranks_per_server
        places = np.empty(rows.size, np.int64)
        for server in np.unique(servers).tolist():
            on_server = servers == server
            places[on_server] = self._indices_on(node_type, server)[rows[on_server]]
        return places

    def owned(self, node_type: str, rank: int) -> Ids:
        """Return [n] int64 global ids, ascending: the nodes that a rank owns."""
        server, local_rank = divmod(rank, self.ranks_per_server)
        first, stop = self.book.range(node_type, server)
        if node_type in self._ranks_of:
            return first + np.flatnonzero(self._ranks_of[node_type][first:stop] == local_rank)
        return np.arange(first + local_rank, stop, self.ranks_per_server, dtype=np.int64)

    def deal(self, node_type: str, ids: Ids) -> ByRank:
        """Group distinct nodes by the rank that owns them, in the order of ``ids`` within a
        rank."""
        owners = self.rank_of(node_type, ids)
        bounds = np.zeros(self.world + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=self.world), out=bounds[1:])
        return ByRank(ids[np.argsort(owners, kind="stable")], bounds)

    def _indices_on(self, node_type: str, server: int) -> NDArray[np.int32]:
        """Return [nodes of the server] int32: indices among the rows of a rank, computed once."""
        if (node_type, server) not in self._indices:
            ranks = self._ranks_of[node_type][slice(*self.book.range(node_type, server))]
            indices = np.empty(ranks.size, np.int32)
            for rank in np.unique(ranks):
                is_own = ranks == rank
                indices[is_own] = np.arange(np.count_nonzero(is_own))
            self._indices[node_type, server] = indices
        return self._indices[node_type, server]
