"""Layouts: which server stores which topology and rows of a partitioned graph.

The layouts here are those of graphs whose nodes are divided: all topology or a part of it on every
server, whole rows or some columns of all rows. :mod:`hopper.partition.by_relation` has another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.neighbor_lists import StoredIds
from cache_server.store.npy import ID_DTYPES, map_by_node
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.description import (
    Description,
    MapName,
    ServerPartition,
    map_file,
    server_folder,
)
from hopper.partition.placement import PartitionBook

StoredTopologies = Iterator[tuple[Topology, Relation, Path]]
"""Topologies, each with its relation and the folder that it is in."""


class Layout(ABC):
    """Tells which server stores which topology and rows of a partitioned graph."""

    name: ClassVar[str]
    """the layout's name in partition.json"""
    draws_alone: ClassVar[bool] = True
    """whether a rank makes all draws of its engine without asking other servers"""
    reads_remote_rows: ClassVar[bool] = True
    """whether ranks may read rows of other servers' nodes"""
    _EXPLANATION: ClassVar[str]
    """what :meth:`explain` says, with ``{where}`` and ``{method}``"""
    partitions: Sequence[ServerPartition] = ()
    """what each server stores, where whole relations are divided; else empty"""

    def __init__(
        self, path: Path, schema: GraphSchema, book: PartitionBook, description: Description
    ) -> None:
        self.path = path
        self._description, self._schema, self._book = description, schema, book
        self.relations = schema.ordered_relations()
        """the relations that any server stores, in canonical order"""
        self._maps: dict[tuple[str, MapName], NDArray[np.int64]] = {}
        # What somebody reads is shared, such as by the samplers of training and evaluation.
        self._topologies = WeakValueDictionary[tuple[Path, Relation], Topology]()

    def explain(self, where: str) -> str:
        """Say, for an error, how the graph ``where`` is divided that an engine cannot train on."""
        return self._EXPLANATION.format(where=where, method=self._description.method)

    @abstractmethod
    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a relation's CSC, as :meth:`hopper.partition.PartitionedGraph.topology` says."""

    @abstractmethod
    def stored_topologies(self, servers: Sequence[int]) -> StoredTopologies:
        """Iterate over the topologies in the folders of some servers, and those for all."""

    def stored(self, table: str, server: int) -> StoredIds:
        """Return a server's stored rows of a node type, or of a relation as ``src/rel/dst``."""
        return StoredIds(*self._book.range(table, server))

    def has_whole_rows(self, table: str) -> bool:
        """Return whether servers store whole rows of a type, or of the relation ``src/rel/dst``."""
        return True

    def columns(self, node_type: str, server: int) -> range:
        """Return the columns of a type's features that a server stores."""
        return range(self._schema.table(node_type).feature_dim or 0)

    def map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        """Return [count] int64: a node type's map from original to global ids, or back. It may be
        stored with fewer bytes, or in a file for each server."""
        if (node_type, name) not in self._maps:
            file = map_file(self.path, node_type, name)
            self._maps[node_type, name] = self._by_node(file, node_type, f"{name} of {node_type}")
        return self._maps[node_type, name]

    def _by_node(self, file: Path, node_type: str, what: str) -> Any:
        """Map numbers by global id, of which each server may have a file."""
        offsets = self._book.offsets[node_type].tolist()
        return map_by_node(file, offsets, lambda file, n: open_array(file, what, ID_DTYPES, (n,)))

    def _counts(self, relation: Relation) -> tuple[int, int]:
        """Return the numbers of nodes of a relation's source type and of its destination type."""
        node_types = self._schema.node_types
        return node_types[relation.src].count, node_types[relation.dst].count

    def _open(
        self,
        folder: Path,
        relation: Relation,
        edges: int | None = None,
        degrees: tuple[Any, Any] | None = None,
        stored: StoredIds | None = None,
        more: Iterable[layout.StoredArray] | None = None,
    ) -> Topology:
        """Map a relation's CSC in a folder.

        Parameters
        ----------
        edges: number of edges that there must be; None = as many as ``indptr`` says.
        degrees: in- and out-degrees of all nodes; None = those in the folder.
        stored: the destinations whose lists are there; None = all.
        more: further arrays by edge; None = those that draws by weight and in time read.
        """
        opened = self._topologies.get((folder, relation))
        if opened is not None:
            return opened

        def array(name: layout.StoredArray, length: int) -> NDArray[Any]:
            file = layout.topology_file(folder, relation, name)
            are_ids = name in ("indices", "edge_ids", "positions")
            dtypes = ID_DTYPES if are_ids else layout.stored_dtype(name)
            return open_array(file, f"{name} of {relation}", dtypes, (length,))

        sources, destinations = self._counts(relation)
        indptr = array("indptr", (destinations if stored is None else stored.count) + 1)
        if degrees is None:
            degrees = array("in_degrees", destinations), array("out_degrees", sources)
        count = int(indptr[-1]) if edges is None else edges
        by_edge: list[layout.StoredArray] = ["indices", "edge_ids"]
        by_edge += layout.draw_arrays(self._schema, relation) if more is None else more
        arrays: dict[str, Any] = {name: array(name, count) for name in by_edge}
        into, out_of = degrees
        opened = Topology(indptr, in_degrees=into, out_degrees=out_of, stored=stored, **arrays)
        self._topologies[folder, relation] = opened
        return opened


class Replicated(Layout):
    """Nodes are divided, and every server has all topology."""

    name = "replicated"
    _EXPLANATION = (
        "{where} was divided by node ({method}), not by relation (--method meta), and so were its "
        "features (not --features by-dimension)"
    )

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a relation's CSC, which is the same for all servers."""
        return self._open(self.path, relation, self._schema.relations[relation].count)

    def stored_topologies(self, servers: Sequence[int]) -> StoredTopologies:
        """Iterate over the topologies, which are the same for all servers."""
        for relation in self.relations:
            yield self.topology(relation, None), relation, self.path


def divide_columns(dim: int, servers: int) -> list[range]:
    """Divide the columns of features among servers."""
    bounds = [dim * server // servers for server in range(servers + 1)]
    return [range(first, stop) for first, stop in pairwise(bounds)]


class ByDimension(Replicated):
    """Every server has some columns of all nodes' features, and all topology and labels (P3)."""

    name = "by_dimension"
    _EXPLANATION = "the features of {where} are divided by dimension, so no server has a whole row"

    def stored(self, table: str, server: int) -> StoredIds:
        """Return all nodes of a type, or the edges of a relation that end at the server's nodes."""
        if table not in self._schema.node_types:
            return super().stored(table, server)
        return StoredIds(0, self._book.total(table))

    def has_whole_rows(self, table: str) -> bool:
        """Return whether servers store whole rows: those of edges, or if there is one server."""
        return self._book.servers == 1 or table not in self._schema.node_types

    def columns(self, node_type: str, server: int) -> range:
        """Return the columns of a type's features that a server stores."""
        whole = super().columns(node_type, server)
        if node_type not in self._schema.node_types:
            return whole
        return divide_columns(len(whole), self._book.servers)[server]


class DividedTopology(Layout):
    """Nodes are divided, and a server has the in-edges of its own nodes. Degrees and original ids
    lie in a file for each server, which are mapped when they are read."""

    name = "partitioned"
    draws_alone = False
    _EXPLANATION = (
        "the topology of {where} is partitioned: a server has the in-edges of its own nodes alone"
    )

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a server's edges of a relation, or join those of all servers in memory."""
        if server is None:
            return self._join_servers(relation)
        folder, stored = server_folder(self.path, server), self.stored(relation.dst, server)
        topology = self._open(folder, relation, None, self._degrees(relation), stored)
        if self._schema.relations[relation].feature_dim is None:
            return topology
        rows = self._schema.node_types[relation.dst].count + 1
        file = layout.topology_file(self.path, relation, "indptr")
        starts = open_array(file, f"indptr of {relation}", np.int64, (rows,))
        return replace(topology, starts=starts)

    def stored_topologies(self, servers: Sequence[int]) -> StoredTopologies:
        """Iterate over the topologies of some servers."""
        for relation in self.relations:
            for server in servers:
                yield self.topology(relation, server), relation, server_folder(self.path, server)

    def _degrees(self, relation: Relation) -> tuple[Any, Any]:
        """Map the in- and out-degrees of all nodes."""
        file = partial(layout.topology_file, self.path, relation)
        into = self._by_node(file("in_degrees"), relation.dst, "in_degrees")
        return into, self._by_node(file("out_degrees"), relation.src, "out_degrees")

    def _join_servers(self, relation: Relation) -> Topology:
        """Join the in-edges that all servers have of their own nodes, in memory."""
        # Global ids of a server's nodes follow those of the server before.
        parts = [self.topology(relation, server) for server in range(self._book.servers)]
        lengths = np.concatenate([np.diff(part.indptr) for part in parts])
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("indices", "edge_ids", *layout.draw_arrays(self._schema, relation))
        }
        indptr, out_degrees = np.concatenate(([0], np.cumsum(lengths))), parts[0].out_degrees
        return Topology(indptr, in_degrees=lengths, out_degrees=np.asarray(out_degrees), **joined)
