"""Open a partitioned directory: topology in global ids, rows by server, and maps of ids.

Arrays are read-only memory maps, so all ranks of a machine share one copy of them. The graph's
layout (:mod:`hopper.partition.layout`) tells which server stores what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.neighbor_lists import StoredIds
from cache_server.store.row_source import CheckedSource
from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.directory import GraphDirectory
from hopper.graph.layout import label_format, stored_features
from hopper.graph.names import Names
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, NodeType, Relation
from hopper.graph.schema_json import read_schema
from hopper.graph.topology import Links, Topology
from hopper.partition.by_relation import ByRelation
from hopper.partition.description import (
    DESCRIPTION_FILE,
    Description,
    read_description,
    server_folder,
)
from hopper.partition.layout import ByDimension, DividedTopology, Layout, Replicated
from hopper.partition.placement import Placement

LAYOUTS: Final[Mapping[str, type[Layout]]] = {
    kind.name: kind for kind in (Replicated, DividedTopology, ByDimension, ByRelation)
}
"""The layouts by their names in partition.json."""


class PartitionedGraph:
    """A partitioned directory that ``hopper partition`` wrote; :meth:`open` makes one.

    A :class:`GraphError` names a file that is missing or damaged, or a relation, type, table,
    server or split that does not exist.
    """

    def __init__(
        self, path: Path, schema: GraphSchema, content: dict[str, Any], description: Description
    ) -> None:
        self.path = path
        self.schema = schema
        self.book = book = description.book(schema, str(path / DESCRIPTION_FILE))
        self.description = content
        """the content of partition.json: method, edge cut, balance, locality, ..."""
        self.layout = LAYOUTS[description.topology](path, schema, book, description)
        """tells which server stores what"""
        self.partitions = self.layout.partitions
        """what each server stores, where whole relations are divided; empty where nodes are"""
        self.relations: Sequence[Relation] = self.layout.relations
        """the relations that any server stores, in canonical order"""
        self._description = description
        self._shared = GraphDirectory(path, schema)
        self.feature_sources: Mapping[str, Callable[[int], CheckedSource]] = {}
        """opens a server's features of a node type, for types whose features are in no file"""

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a partitioned directory; arrays are mapped and checked when they are asked for."""
        root = Path(path)
        described = read_description(root)
        return cls(root, read_schema(root), *described)

    def topology(self, relation: Relation, server: int | None = None) -> Topology:
        """Map the CSC of a relation, in global ids: a server's edges, or all if ``server`` is None.

        Where topology is partitioned, a server's edges are the in-edges of its nodes, and other
        nodes have no lists. Where relations are divided, they are those of its copy; if
        it stores a part of a root relation, those that hops below the roots read. All edges are
        joined in memory where no server has all of them. Where a root relation is in parts, these
        are the edges that hops from the splits read.
        """
        self._kind(relation)
        return self.layout.topology(relation, server)

    def root_topology(self, relation: Relation, server: int) -> Topology:
        """Map the in-edges of roots that a server stores of one of its root relations."""
        assert isinstance(self.layout, ByRelation)
        return self.layout.root_topology(relation, server)

    def root_lists(self, relation: Relation, server: int) -> Topology:
        """Make, in memory, whole lists of :meth:`root_topology`, as draws by weight or time need;
        they have gaps for edges that the server does not store."""
        assert isinstance(self.layout, ByRelation)
        return self.layout.root_lists(relation, server)

    def stored(self, table: str, server: int) -> StoredIds:
        """Tell which rows a server stores of a table: a node type, whose rows are its nodes, or a
        relation with edge features as ``src/rel/dst``, whose rows are its edges in CSC order."""
        self.book.range(table, server)
        return self.layout.stored(table, server)

    def placement(self, ranks_per_server: int) -> Placement:
        """Tell which rank owns each node."""
        return Placement(self.book, ranks_per_server)

    def original_ids(self, node_type: str) -> NDArray[np.int64]:
        """Return [count] int64: the original id of each global id."""
        self._kind(node_type)
        return self.layout.map(node_type, "original_ids")

    def global_ids(self, node_type: str) -> NDArray[np.int64]:
        """Return [count] int64: the global id of each original id."""
        self._kind(node_type)
        return self.layout.map(node_type, "global_ids")

    def features(self, table: str, server: int) -> NDArray[Any] | None:
        """Map the features of a table that a server stores, in their stored form: [rows, columns];
        None if it has none. Rows are nodes by local row, or of a relation ``src/rel/dst`` the
        in-edges of the server's nodes in the order of the CSC."""
        is_relation = table not in self.schema.node_types and table.count("/") == 2
        owner = Relation(*table.split("/")) if is_relation else table
        kind = self._kind(owner)
        stored = stored_features(kind, len(self.layout.columns(table, server)))
        if stored is None:
            return None
        if is_relation and self.partitions and not self.partitions[server].is_whole:
            rows = self.topology(Relation(*owner), server).indices.size
        else:
            rows = self.stored(table, server).count
        file = layout.features_file(server_folder(self.path, server), owner)
        what = "edge features" if is_relation else "features"
        return open_array(file, f"{what} of {table}", stored.dtype, (rows, stored.columns))

    def times(self, owner: Labelled) -> NDArray[np.int64]:
        """Map the times of a type's nodes by ORIGINAL id, or of a target relation's edges by edge
        id where labels of edges are predicted: [count] int64."""
        return self._shared.times(owner)

    def labels(self, node_type: str, server: int) -> NDArray[Any] | None:
        """Map the labels of a server's nodes by local row, if any: [n] or [n, columns]."""
        self._kind(node_type)
        if node_type not in self.schema.labels:
            return None
        count = self.stored(node_type, server).count
        dtype, shapes = label_format(self.schema.labels[node_type], count)
        file = layout.labels_file(server_folder(self.path, server), node_type)
        return open_array(file, f"labels of {node_type}", dtype, *shapes)

    def split(self, name: str) -> NDArray[np.int64]:
        """Map a split's ORIGINAL ids of target nodes, or of target edges: [n] int64, ascending."""
        return self._shared.split(name)

    def links(self, split: str) -> Links:
        """Map the ends of a split's edges, and their labels and times if they have any."""
        if not self.schema.target_relations:
            raise GraphError(f"{self.path}: nodes of {self.schema.target} are predicted, not links")
        ids = self.split(split)
        file = layout.links_file(self.path, split)
        ends = open_array(file, f"links of split {split}", np.int64, (3, ids.size))
        kind, labels, times = self.schema.target_labels, None, None
        if kind is not None:
            dtype, shapes = label_format(kind, ids.size)
            file = layout.links_file(self.path, split, "labels")
            labels = open_array(file, f"labels of split {split}", dtype, *shapes)
        if self.schema.links_are_timed:
            file = layout.links_file(self.path, split, "times")
            times = open_array(file, f"times of split {split}", np.int64, (ids.size,))
        return Links(ids, ends[0], ends[1], ends[2], labels, times)

    def names(self, node_type: str) -> Names | None:
        """Open the source's names of nodes, by ORIGINAL id; None if the source numbers them."""
        count = self._kind(node_type).count
        return Names.open(layout.names_file(self.path, node_type), count)

    def label_names(self, task: str = "") -> list[str]:
        """Read the source's names of the predicted classes, of one of several tasks; empty if
        it numbers them."""
        labels = self.schema.target_labels
        if labels is not None and task:
            labels = dict(labels.tasks)[task]
        if labels is None or labels.kind != "class":
            return []
        file = layout.label_names_file(self.path, self.schema.target, task)
        names = Names.open(file, labels.classes)
        return [] if names is None else names.of(np.arange(len(names)))

    def class_names(self) -> dict[str, list[str]]:
        """Read :meth:`label_names` of every task, "" if there is only one."""
        labels = self.schema.target_labels
        tasks = [name for name, _ in labels.tasks] if labels else []
        return {task: self.label_names(task) for task in ("", *tasks)}

    def reverse_relations(self, relation: Relation) -> list[Relation]:
        """Return the relations with the reverses of a target relation's edges."""
        names = self._description.reverse_relations.get(str(relation), [])
        return [reverse for reverse in self.schema.ordered_relations() if str(reverse) in names]

    def _kind(self, owner: Labelled) -> NodeType | EdgeType:
        """Return a node type or relation of the schema, or refuse a name that it does not have."""
        kind = self.schema.kinds.get(owner)
        if kind is None:
            is_node_type = isinstance(owner, str)
            known = self.schema.node_types if is_node_type else self.schema.relations
            what = f"node type {owner!r}" if is_node_type else f"relation {owner}"
            raise GraphError(f"{self.path}: {what}: expected one of {sorted(map(str, known))}")
        return kind
