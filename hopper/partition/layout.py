"""The interface of layouts: which server stores which topology and rows of a partitioned graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.neighbor_lists import StoredIds
from hopper.graph.array_file import open_array
from hopper.graph.directory import open_topology
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.book import PartitionBook
from hopper.partition.description import Description, ServerPartition
from hopper.partition.file_names import MapName, map_file

StoredTopologies = Iterator[tuple[Topology, Relation, Path]]
"""Topologies, each with its relation and the folder that it is in."""


class Columns(NamedTuple):
    """A range of columns of features."""

    first: int
    stop: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.stop - self.first


class Layout(ABC):
    """Tells which server stores which topology and rows of a partitioned graph."""

    name: ClassVar[str]
    """the layout's name in partition.json"""
    draws_alone: ClassVar[bool] = True
    """whether a rank makes all draws of its engine without asking other servers"""
    reads_remote_rows: ClassVar[bool] = True
    """whether ranks may read rows of other servers' nodes"""
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

    @abstractmethod
    def explain(self, where: str) -> str:
        """Say, for an error, how the graph ``where`` is divided that an engine cannot train on."""

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

    def columns(self, node_type: str, server: int) -> Columns:
        """Return the columns of a type's features that a server stores."""
        return Columns(0, self._schema.table(node_type).feature_dim or 0)

    def map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        """Return [count] int64: a node type's map from original to global ids, or back."""
        if (node_type, name) not in self._maps:
            count = self._schema.node_types[node_type].count
            file = map_file(self.path, node_type, name)
            ids = open_array(file, f"{name} of {node_type}", np.int64, (count,))
            self._maps[node_type, name] = ids
        return self._maps[node_type, name]

    def _counts(self, relation: Relation) -> tuple[int, int]:
        """Return the numbers of nodes of a relation's source type and of its destination type."""
        node_types = self._schema.node_types
        return node_types[relation.src].count, node_types[relation.dst].count

    def _open(
        self,
        folder: Path,
        relation: Relation,
        edges: int | None = None,
        stored: StoredIds | None = None,
        degrees: tuple[Any, Any] | None = None,
    ) -> Topology:
        """Map a relation's CSC, with the arrays that draws by weight and time read."""
        opened = self._topologies.get((folder, relation))
        if opened is None:
            opened = open_topology(
                *(folder, relation, edges, *self._counts(relation), stored, degrees),
                weighted=self._schema.relations[relation].weighted,
                timed=self._schema.is_timed(relation),
            )
            self._topologies[folder, relation] = opened
        return opened
