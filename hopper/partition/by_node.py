"""Layouts of graphs whose nodes are divided: all topology or a part of it on every server, whole
rows or some columns of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.neighbor_lists import StoredIds
from cache_server.store.npy import map_by_node
from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.book import PartitionBook
from hopper.partition.description import Description
from hopper.partition.file_names import (
    DESCRIPTION_FILE,
    MapName,
    listed_file,
    map_file,
    server_folder,
)
from hopper.partition.layout import Columns, Layout, StoredTopologies


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
    """Nodes are divided, and a server has the in-edges of its own nodes and of its halo.

    Degrees and original ids lie in a file for each server, which are mapped when they are read.
    """

    name = "partitioned"
    draws_alone = False

    def __init__(
        self, path: Path, schema: GraphSchema, book: PartitionBook, description: Description
    ) -> None:
        super().__init__(path, schema, book, description)
        if description.version == 1:
            raise GraphError(
                f"{path / DESCRIPTION_FILE}: field 'schema': version 1 of partitioned topology is "
                "not read any more; divide the graph again with `hopper partition`"
            )

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

    def map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        """Return a map: original ids as an array in a file for each server."""
        if name == "original_ids" and (node_type, name) not in self._maps:
            file = map_file(self.path, node_type, name)
            self._maps[node_type, name] = self._by_node(file, node_type, f"{name} of {node_type}")
        return super().map(node_type, name)

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a server's edges of a relation, or join those of all servers in memory."""
        if server is None:
            return self._join_servers(relation)
        folder, stored = server_folder(self.path, server), self._listed(relation.dst, server)
        topology = self._open(folder, relation, None, stored, self._degrees(relation))
        if self._schema.relations[relation].feature_dim is None:
            return topology
        rows = self._schema.node_types[relation.dst].count + 1
        file = layout.topology_file(self.path, relation, "indptr")
        return replace(
            topology, starts=open_array(file, f"indptr of {relation}", np.int64, (rows,))
        )

    def stored_topologies(self, servers: Sequence[int]) -> StoredTopologies:
        """Iterate over the topologies of some servers."""
        for relation in self.relations:
            for server in servers:
                yield self.topology(relation, server), relation, server_folder(self.path, server)

    def _by_node(self, file: Path, node_type: str, what: str) -> Any:
        """Map an array by global id, of which each server has a file."""
        offsets = self._book.offsets[node_type].tolist()
        return map_by_node(file, offsets, lambda file, n: open_array(file, what, np.int64, (n,)))

    def _degrees(self, relation: Relation) -> tuple[Any, Any]:
        """Map the in- and out-degrees of all nodes."""
        ends: dict[layout.TopologyArray, str] = {
            "in_degrees": relation.dst,
            "out_degrees": relation.src,
        }
        into, out = (
            self._by_node(layout.topology_file(self.path, relation, array), node_type, array)
            for array, node_type in ends.items()
        )
        return into, out

    def _listed(self, node_type: str, server: int) -> StoredIds:
        """Return the nodes whose in-edges a server stores: its own, and those of its halo."""
        if not self.halo:
            return self.stored(node_type, server)
        file = listed_file(server_folder(self.path, server), node_type)
        ids = open_array(file, f"nodes of {node_type} with in-edges", np.int64, None)
        return StoredIds(0, self._book.total(node_type), ids)

    def _join_servers(self, relation: Relation) -> Topology:
        """Join the in-edges that all servers have of their own nodes, in memory."""
        parts = [self.topology(relation, server) for server in range(self._book.servers)]
        # Global ids of a server's nodes follow those of the server before.
        own = []
        for server, part in enumerate(parts):
            first, stop = part.rows(np.array(self._book.range(relation.dst, server)))
            own.append((part, part.indptr[first : stop + 1]))
        lengths = np.concatenate([np.diff(indptr) for _, indptr in own])
        joined: dict[str, Any] = {"indptr": np.concatenate(([0], np.cumsum(lengths)))}
        for name in ("indices", "edge_ids", *layout.draw_arrays(self._schema, relation)):
            pieces = [getattr(part, name)[indptr[0] : indptr[-1]] for part, indptr in own]
            joined[name] = np.concatenate(pieces)
        joined |= {"in_degrees": lengths, "out_degrees": np.asarray(parts[0].out_degrees)}
        return Topology(**joined)
