"""The layout of graphs whose features are divided by dimension (P3, section 3.1)."""

from __future__ import annotations

from itertools import pairwise

from hopper.partition.by_node import Replicated
from hopper.partition.layout import Columns, StoredIds


def divide_columns(dim: int, servers: int) -> list[Columns]:
    """Divide the columns of features among servers."""
    bounds = [dim * server // servers for server in range(servers + 1)]
    return [Columns(first, stop) for first, stop in pairwise(bounds)]


class ByDimension(Replicated):
    """Every server has some columns of all nodes' features, and all topology and labels."""

    name = "by_dimension"

    def explain(self, where: str) -> str:
        """Say that features are divided by dimension."""
        return f"the features of {where} are divided by dimension, so no server has a whole row"

    def stored(self, node_type: str, server: int) -> StoredIds:
        """Return all nodes of a type, or the edges of a relation that end at the server's nodes."""
        if node_type not in self._schema.node_types:
            return super().stored(node_type, server)
        return StoredIds(0, self._book.total(node_type))

    def has_whole_rows(self, table: str) -> bool:
        """Return whether servers store whole rows: those of edges, or if there is one server."""
        return self._book.servers == 1 or table not in self._schema.node_types

    def columns(self, node_type: str, server: int) -> Columns:
        """Return the columns of a type's features that a server stores."""
        if node_type not in self._schema.node_types:
            return super().columns(node_type, server)
        dim = self._schema.node_types[node_type].feature_dim or 0
        return divide_columns(dim, self._book.servers)[server]
