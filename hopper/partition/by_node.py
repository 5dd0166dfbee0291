"""Layouts of graphs whose nodes are divided: with all topology on every server, or with a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.book import PartitionBook
from hopper.partition.file_names import DESCRIPTION_FILE, server_folder
from hopper.partition.layout import Layout


class Replicated(Layout):
    """Nodes are divided, and every server has all topology."""

    name = "replicated"

    def explain(self, where: str) -> str:
        """Say that nodes are divided, neither relations nor features' columns."""
        method = self.description["method"]
        return (
            f"{where} was divided by node ({method}), not by relation (--method meta), and so were "
            "its features (not --features by-dimension)"
        )

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a relation's CSC, which is the same for all servers."""
        return self._open(self.path, relation, self._schema.relations[relation].count)

    def stored_topologies(
        self, servers: Sequence[int]
    ) -> Iterator[tuple[Topology, Relation, Path]]:
        """Iterate over the topologies, which are the same for all servers."""
        for relation in self.relations:
            yield self.topology(relation, None), relation, self.path


class DividedTopology(Layout):
    """Nodes are divided, and a server has the in-edges of its own nodes and of its halo.

    Attributes
    ----------
    halo: number of hops from a server's own nodes to the nodes of its halo; 0 = no halo.
    """

    name = "partitioned"
    draws_alone = False

    def __init__(
        self, path: Path, schema: GraphSchema, book: PartitionBook, description: dict[str, Any]
    ) -> None:
        super().__init__(path, schema, book, description)
        self.halo = description.get("halo", 0)
        if type(self.halo) is not int or self.halo < 0:
            raise GraphError(
                f"{path / DESCRIPTION_FILE}: field 'halo': expected a number of hops, found "
                f"{self.halo!r}"
            )

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
        topology = self._open(server_folder(self.path, server), relation, degrees=self.path)
        if self._schema.relations[relation].feature_dim is None:
            return topology
        file, rows = layout.topology_file(self.path, relation, "indptr"), topology.indptr.shape
        return replace(topology, starts=open_array(file, f"indptr of {relation}", np.int64, rows))

    def stored_topologies(
        self, servers: Sequence[int]
    ) -> Iterator[tuple[Topology, Relation, Path]]:
        """Iterate over the topologies of some servers."""
        for relation in self.relations:
            for server in servers:
                yield self.topology(relation, server), relation, server_folder(self.path, server)

    def _join_servers(self, relation: Relation) -> Topology:
        """Join the in-edges that all servers have of their own nodes, in memory."""
        parts = [self.topology(relation, server) for server in range(self._book.servers)]
        ranges = [self._book.range(relation.dst, server) for server in range(len(parts))]
        # Global ids of a server's nodes follow those of the server before.
        slices = [
            slice(*part.indptr[[first, stop]].tolist())
            for part, (first, stop) in zip(parts, ranges, strict=True)
        ]

        def by_edge(arrays: list[NDArray[Any]]) -> NDArray[Any]:
            pairs = zip(arrays, slices, strict=True)
            return np.concatenate([array[edges] for array, edges in pairs])

        draw_arrays: dict[str, Any] = {
            name: by_edge([getattr(part, name) for part in parts])
            for name in layout.draw_arrays(self._schema, relation)
        }
        lengths = [
            np.diff(part.indptr[first : stop + 1])
            for part, (first, stop) in zip(parts, ranges, strict=True)
        ]
        return Topology(
            indptr=np.concatenate(([0], np.cumsum(np.concatenate(lengths)))),
            indices=by_edge([part.indices for part in parts]),
            edge_ids=by_edge([part.edge_ids for part in parts]),
            in_degrees=parts[0].in_degrees,
            out_degrees=parts[0].out_degrees,
            **draw_arrays,
        )
