"""Where nodes are, for every layout of a graph: on which server, and which rank owns them.

The partition book tells a node's server; a placement deals a server's nodes to its ranks. The rank
that owns a node trains it as a root, keeps its learnable row, and computes its layers under
``cooperative`` and in evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from hopper.errors import GraphError
from hopper.graph.topology import Ids


class PartitionBook:
    """Tells the home of nodes without a table of all nodes: a binary search in ``servers + 1``
    offsets of their type, since global ids are contiguous by server.

    A :class:`GraphError` says that offsets are impossible, or that a node type, server or id does
    not exist.

    Parameters
    ----------
    servers: number of servers P, at least 1.
    offsets: for each node type ``P + 1`` ascending integers from 0 to the number of nodes. Server i
        stores the global ids in [``offsets[i]``, ``offsets[i + 1]``).
    where: the source of the offsets, for errors.
    """

    def __init__(
        self,
        servers: int,
        offsets: Mapping[str, Sequence[int] | Ids],
        where: str = "partition book",
    ) -> None:
        if servers < 1:
            raise GraphError(f"{where}: field 'servers': expected at least 1, found {servers}")
        self.servers = servers
        self.offsets = {name: np.array(bounds, np.int64) for name, bounds in offsets.items()}
        self._where = where
        for name, bounds in self.offsets.items():
            if bounds.shape != (servers + 1,) or bounds[0] != 0 or (np.diff(bounds) < 0).any():
                raise GraphError(
                    f"{where}: field 'offsets.{name}': expected {servers + 1} ascending integers "
                    f"from 0, found {bounds.tolist()!s:.200}"
                )

    def home(self, node_type: str, global_ids: Ids) -> Ids:
        """Return [n] int64: the server that stores each node."""
        offsets, ids = self._offsets(node_type), np.asarray(global_ids, dtype=np.int64)
        for wrong in (int(ids.min()), int(ids.max())) if ids.size else ():
            if not 0 <= wrong < offsets[-1]:
                raise GraphError(
                    f"{self._where}: global id {wrong} of node type {node_type!r} is outside "
                    f"[0, {offsets[-1]})"
                )
        # "right" steps over servers that own no node of this type.
        return np.searchsorted(offsets, ids, side="right") - 1

    def range(self, node_type: str, server: int) -> tuple[int, int]:
        """Return the range [first, stop) of global ids that a server stores."""
        offsets = self._offsets(node_type)
        if not 0 <= server < self.servers:
            raise GraphError(f"{self._where}: server {server} of {self.servers} does not exist")
        return int(offsets[server]), int(offsets[server + 1])

    def total(self, node_type: str) -> int:
        """Return the number of nodes of a type that all servers store together."""
        return int(self._offsets(node_type)[-1])

    def _offsets(self, node_type: str) -> Ids:
        if node_type not in self.offsets:
            names = ", ".join(sorted(self.offsets))
            raise GraphError(
                f"{self._where}: unknown node type {node_type!r}, expected one of: {names}"
            )
        return self.offsets[node_type]


class Placement:
    """Tells which rank owns each node: a server's nodes are dealt to its ranks in turn. Ranks are
    numbered server by server, ``ranks_per_server`` each; errors are those of the book."""

    dealing: Final = "in turn"
    """how nodes are dealt, which checkpoints and caches compare"""

    def __init__(self, book: PartitionBook, ranks_per_server: int) -> None:
        self.book = book
        self.ranks_per_server = ranks_per_server
        self.world = book.servers * ranks_per_server

    def of_tables(self, offsets: Mapping[str, Ids]) -> Placement:
        """Make a placement, with the same dealing, of tables with other offsets, by table."""
        book = PartitionBook(self.book.servers, offsets, "tables of learnable rows")
        return Placement(book, self.ranks_per_server)

    def rank_of(self, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64: the rank that owns each node."""
        servers = self.book.home(node_type, ids)
        if self.ranks_per_server == 1:
            return servers
        ranks = (ids - self.book.offsets[node_type][servers]) % self.ranks_per_server
        return servers * self.ranks_per_server + ranks

    def place_of(self, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64: each node's index in :meth:`owned` of its rank."""
        servers = self.book.home(node_type, ids)
        return (ids - self.book.offsets[node_type][servers]) // self.ranks_per_server

    def owned(self, node_type: str, rank: int) -> Ids:
        """Return [n] int64 global ids, ascending: the nodes that a rank owns."""
        server, local_rank = divmod(rank, self.ranks_per_server)
        first, stop = self.book.range(node_type, server)
        return np.arange(first + local_rank, stop, self.ranks_per_server, dtype=np.int64)

    def deal(self, node_type: str, ids: Ids) -> list[Ids]:
        """Return, by rank, those of some distinct nodes that it owns, in the order of ``ids``."""
        owners = self.rank_of(node_type, ids)
        bounds = np.cumsum(np.bincount(owners, minlength=self.world))
        return np.split(ids[np.argsort(owners, kind="stable")], bounds[:-1])
