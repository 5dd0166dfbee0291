"""Layouts of graphs whose nodes are divided: all topology or a part of it on every server, whole
rows or some columns of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.partition.file_names import server_folder
from hopper.partition.layout import Columns, Layout, StoredIds, StoredTopologies


class Replicated(Layout):
    """Nodes are divided, and every server has all topology."""

    name = "replicated"

    def explain(self, where: str) -> str:
        """Say that nodes are divided, neither relations nor features' columns."""
        return (
            f"{where} was divided by node ({self._description.method}), not by relation (--method "
            "meta), and so were its features (not --features by-dimension)"
        )

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a relation's CSC, which is the same for all servers."""
        return self._open(self.path, relation, self._schema.relations[relation].count)

    def stored_topologies(self, servers: Sequence[int]) -> StoredTopologies:
        """Iterate over the topologies, which are the same for all servers."""
        for relation in self.relations:
            yield self.topology(relation, None), relation, self.path


def divide_columns(dim: int, servers: int) -> list[Columns]:
    """Divide the columns of features among servers."""
    bounds = [dim * server // servers for server in range(servers + 1)]
    return [Columns(first, stop) for first, stop in pairwise(bounds)]


class ByDimension(Replicated):
    """Every server has some columns of all nodes' features, and all topology and labels (P3)."""

    name = "by_dimension"

    def explain(self, where: str) -> str:
        """Say that features are divided by dimension."""
        return f"the features of {where} are divided by dimension, so no server has a whole row"

    def stored(self, table: str, server: int) -> StoredIds:
        """Return all nodes of a type, or the edges of a relation that end at the server's nodes."""
        if table not in self._schema.node_types:
            return super().stored(table, server)
        return StoredIds(0, self._book.total(table))

    def has_whole_rows(self, table: str) -> bool:
        """Return whether servers store whole rows: those of edges, or if there is one server."""
        return self._book.servers == 1 or table not in self._schema.node_types

    def columns(self, node_type: str, server: int) -> Columns:
        """Return the columns of a type's features that a server stores."""
        whole = super().columns(node_type, server)
        if node_type not in self._schema.node_types:
            return whole
        return divide_columns(whole.width, self._book.servers)[server]


class DividedTopology(Layout):
    """Nodes are divided, and a server has the in-edges of its own nodes and of its halo."""

    name = "partitioned"
    draws_alone = False

    @property
    def halo(self) -> int:
        """Number of hops from a server's own nodes to the nodes of its halo; 0 = no halo."""
        return self._description.halo

    def explain(self, where: str) -> str:
        """Say that topology is partitioned, and what a server has of it."""
        near = f" and of those within {self.halo} hops of them" if self.halo else ""
        return (
            f"the topology of {where} is partitioned: a server has the in-edges of its own nodes"
            f"{near} alone"
        )

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a server's edges of a relation, or join those of all servers in memory."""
        if server is None:
            return self._join_servers(relation)
        topology = self._open(server_folder(self.path, server), relation, None, self.path)
        if self._schema.relations[relation].feature_dim is None:
            return topology
        file, rows = layout.topology_file(self.path, relation, "indptr"), topology.indptr.shape
        return replace(topology, starts=open_array(file, f"indptr of {relation}", np.int64, rows))

    def stored_topologies(self, servers: Sequence[int]) -> StoredTopologies:
        """Iterate over the topologies of some servers."""
        for relation in self.relations:
            for server in servers:
                yield self.topology(relation, server), relation, server_folder(self.path, server)

    def _join_servers(self, relation: Relation) -> Topology:
        """Join the in-edges that all servers have of their own nodes, in memory."""
        parts = [self.topology(relation, server) for server in range(self._book.servers)]
        # Global ids of a server's nodes follow those of the server before.
        ranges = [self._book.range(relation.dst, server) for server in range(len(parts))]
        own = [
            (part, part.indptr[slice(first, stop + 1)])
            for part, (first, stop) in zip(parts, ranges, strict=True)
        ]
        lengths = np.concatenate([np.diff(indptr) for _, indptr in own])
        joined: dict[str, Any] = {"indptr": np.concatenate(([0], np.cumsum(lengths)))}
        for name in ("indices", "edge_ids", *layout.draw_arrays(self._schema, relation)):
            pieces = [getattr(part, name)[indptr[0] : indptr[-1]] for part, indptr in own]
            joined[name] = np.concatenate(pieces)
        return replace(parts[0], starts=None, **joined)
