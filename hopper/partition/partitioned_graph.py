"""A partitioned directory, opened: topology in global ids, rows by server, maps both ways.

Arrays are read-only memory maps, so every rank of a machine shares one copy of them.
What lies where is the business of its layout (:mod:`hopper.partition.layouts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.row_source import CheckedSource
from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.check_values import label_format
from hopper.graph.json_file import read_json
from hopper.graph.links import Links
from hopper.graph.names import Names
from hopper.graph.row_form import stored_features
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, NodeType, Relation
from hopper.graph.schema_json import read_schema
from hopper.graph.topology import Topology
from hopper.partition.book import PartitionBook
from hopper.partition.layouts import (
    DESCRIPTION_FILE,
    LAYOUTS,
    ROOTS_FOLDER,
    ByRelation,
    Holding,
    MapName,
    StoredRows,
    ranks_file,
    server_folder,
)
from hopper.partition.placement import RANK_DTYPE, ByLocality, Placement

PARTITION_SCHEMA_VERSION: Final = 1

_REQUIRED = {"schema": int, "method": str, "servers": int, "offsets": dict, "topology": str}


class PartitionedGraph:
    """What ``hopper partition`` wrote; made by :meth:`open`."""

    def __init__(
        self, path: Path, schema: GraphSchema, book: PartitionBook, description: dict[str, Any]
    ) -> None:
        self.path = path
        self.schema = schema
        self.book = book
        self.description = description
        """partition.json as it stands: method, edge cut, balance, locality, ..."""
        self.layout = LAYOUTS[description["topology"]](path, schema, book, description)
        """who has what of it"""
        self.feature_sources: Mapping[str, Callable[[int], CheckedSource]] = {}
        """by node type whose features are in no file of it, what reads those of a server"""

    @property
    def holdings(self) -> Sequence[Holding]:
        """By server, where whole relations were divided; empty where nodes were."""
        return self.layout.holdings

    @property
    def relations(self) -> Sequence[Relation]:
        """Those that any server stores, in canonical order."""
        return self.layout.relations

    @classmethod
    def open(cls, path: Path | str) -> PartitionedGraph:
        """Open a partitioned directory; arrays are mapped and checked when they are asked for.

        Raises
        ------
        GraphError: a missing file, an unknown schema version, offsets that do not fit the schema.
        """
        root = Path(path)
        description = read_description(root)
        schema = read_schema(root)
        where = str(root / DESCRIPTION_FILE)
        offsets = {**description["offsets"], **description.get("edge_offsets", {})}
        book = PartitionBook(description["servers"], offsets, where)
        _check_counts(schema, book, description, where)
        return cls(root, schema, book, description)

    def topology(self, relation: Relation, server: int | None = None) -> Topology:
        """The in-edges of every node, rows and sources in global ids.

        Parameters
        ----------
        server: whose copy, where relations are divided, and whose nodes' in-edges, where topology
            is, with those of its halo: other nodes then have none; of a server with a part of a
            root relation, the in-edges of what is expanded below roots. None = any server's that
            has a copy, and all in-edges (put together in memory where topology is divided, or where
            servers have parts: those that hops from the splits read).

        Raises
        ------
        GraphError: an unknown relation, or one that the server does not store; a missing or
            misshapen array.
        """
        self._edge_type(relation)
        return self.layout.topology(relation, server)

    def root_topology(self, relation: Relation, server: int) -> Topology:
        """The in-edges of roots that a server stores of one of its root relations, where relations
        are divided; errors as of :meth:`topology`."""
        assert isinstance(self.layout, ByRelation)
        return self.layout.root_topology(relation, server)

    def root_lists(self, relation: Relation, server: int) -> Topology:
        """As :meth:`root_topology`, for draws that depend on all of a list: whole lists, made in
        memory and with gaps where the server stores a part of their edges."""
        assert isinstance(self.layout, ByRelation)
        return self.layout.root_lists(relation, server)

    def stored(self, table: str, server: int) -> StoredRows:
        """The nodes of a type whose rows a server stores; or, of a relation (``src/rel/dst``) whose
        edges have features, the edges, by their places in its CSC.

        Raises
        ------
        GraphError: an unknown table or server; a missing or misshapen array.
        """
        self.book.range(table, server)
        return self.layout.stored(table, server)

    def placement(self, ranks_per_server: int) -> Placement:
        """Which rank owns which node: by locality where the graph was divided for as many ranks a
        server, otherwise in turn.

        Raises
        ------
        GraphError: a missing or misshapen array of ranks.
        """
        if ranks_per_server == 1 or self.description.get("ranks_per_server") != ranks_per_server:
            return Placement(self.book, ranks_per_server)
        ranks = {
            name: open_array(
                ranks_file(self.path, name), f"ranks of {name}", RANK_DTYPE, (kind.count,)
            )
            for name, kind in self.schema.node_types.items()
        }
        return Placement(self.book, ranks_per_server, ByLocality(self.book, ranks))

    def original_ids(self, node_type: str) -> NDArray[np.int64]:
        """[count] int64: the original id of each global id."""
        return self._map(node_type, "original_ids")

    def global_ids(self, node_type: str) -> NDArray[np.int64]:
        """[count] int64: the global id of each original id."""
        return self._map(node_type, "global_ids")

    def features(self, table: str, server: int) -> NDArray[Any] | None:
        """[rows of the server, columns of the server] by local row, as they are stored
        (:mod:`cache_server.row_form`), of nodes of a type or edges of a relation (``src/rel/dst``);
        None without features."""
        if table not in self.schema.node_types and "/" in table:
            return self.edge_features(Relation(*table.split("/")), server)
        node_type = table
        described = self._node_type(node_type)
        stored = stored_features(described, self.layout.columns(node_type, server).width)
        if stored is None:
            return None
        file = layout.features_file(server_folder(self.path, server), node_type)
        shape = (self.stored(node_type, server).count, stored.columns)
        return open_array(file, f"features of {node_type}", stored.dtype, shape)

    def times(self, owner: Labelled) -> NDArray[np.int64]:
        """[count] int64: the times of a type's nodes, by ORIGINAL id, or, where labels of edges are
        predicted, of a target relation's edges, by edge id."""
        kind: NodeType | EdgeType
        kind = self._node_type(owner) if isinstance(owner, str) else self._edge_type(owner)
        if not kind.timed:
            what = "nodes" if isinstance(owner, str) else "edges"
            raise GraphError(f"{self.path}: {what} of {owner} have no times")
        file = layout.times_file(self.path, owner)
        return open_array(file, f"times of {owner}", np.int64, (kind.count,))

    def labels(self, node_type: str, server: int) -> NDArray[Any] | None:
        """[nodes of the server] or [nodes of the server, classes] by local row; None if none."""
        self._node_type(node_type)
        if node_type not in self.schema.labels:
            return None
        count = self.stored(node_type, server).count
        dtype, shapes = label_format(self.schema.labels[node_type], count)
        file = layout.labels_file(server_folder(self.path, server), node_type)
        return open_array(file, f"labels of {node_type}", dtype, *shapes)

    def edge_features(self, relation: Relation, server: int) -> NDArray[Any] | None:
        """[in-edges of the server's nodes, dim], in the order of the relation's CSC; None without
        edge features."""
        if self._edge_type(relation).feature_dim is None:
            return None
        if self.holdings and self.holdings[server].part.parts > 1:
            edges = self.topology(relation, server).indices.size
        else:
            edges = self.stored(str(relation), server).count
        return self._edge_rows(relation, server_folder(self.path, server), edges)

    def root_edge_features(self, relation: Relation, server: int) -> NDArray[Any] | None:
        """[edges, dim], in the order of :meth:`root_topology`; None without edge features."""
        if self.holdings[server].part.parts == 1:
            return self.edge_features(relation, server)
        edges = self.root_topology(relation, server).indices.size
        return self._edge_rows(relation, server_folder(self.path, server) / ROOTS_FOLDER, edges)

    def _edge_rows(self, relation: Relation, folder: Path, edges: int) -> NDArray[Any] | None:
        stored = stored_features(self._edge_type(relation))
        if stored is None:
            return None
        file, shape = layout.edge_features_file(folder, relation), (edges, stored.columns)
        return open_array(file, f"edge features of {relation}", stored.dtype, shape)

    def split(self, name: str) -> NDArray[np.int64]:
        """[n] int64, ascending: the split's ORIGINAL ids (edge ids where the target is a relation).

        Raises
        ------
        GraphError: the graph has no split of that name.
        """
        if name not in self.schema.splits:
            known = sorted(self.schema.splits)
            raise GraphError(f"{self.path}: split {name!r}: expected one of {known}")
        file = layout.split_file(self.path, name)
        return open_array(file, f"split {name}", np.int64, (self.schema.splits[name],))

    def links(self, split: str) -> Links:
        """The edges of a split, by their ends, with their labels if they have any; errors as of
        :meth:`split`, and where nodes are predicted."""
        if not self.schema.target_relations:
            raise GraphError(f"{self.path}: nodes of {self.schema.target} are predicted, not links")
        ids = self.split(split)
        file = layout.links_file(self.path, split)
        ends = open_array(file, f"links of split {split}", np.int64, (3, ids.size))
        described, labels, times = self.schema.target_labels, None, None
        if described is not None:
            dtype, shapes = label_format(described, ids.size)
            file = layout.link_labels_file(self.path, split)
            labels = open_array(file, f"labels of split {split}", dtype, *shapes)
        if self.schema.links_are_timed:
            file = layout.link_times_file(self.path, split)
            times = open_array(file, f"times of split {split}", np.int64, (ids.size,))
        return Links(ids, ends[0], ends[1], ends[2], labels, times)

    def names(self, node_type: str) -> Names | None:
        """What the source called the nodes of a type that is predicted, by ORIGINAL id; None where
        it numbered them."""
        count = self._node_type(node_type).count
        return Names.open(layout.names_file(self.path, node_type), count)

    def label_names(self, task: str = "") -> list[str]:
        """What the source called the classes that are predicted, of one of several tasks if any is
        named; none where it numbered them."""
        described = self.schema.target_labels
        if described is not None and task:
            described = dict(described.tasks)[task]
        if described is None or described.kind != "class":
            return []
        file = layout.label_names_file(self.path, self.schema.target, task)
        names = Names.open(file, described.classes)
        return [] if names is None else names.of(np.arange(len(names)))

    def reverse_relations(self, relation: Relation) -> list[Relation]:
        """The relations that hold the same edges turned round, where edges are predicted."""
        told = self.description.get("reverse_relations", {}).get(str(relation), [])
        return [each for each in self.schema.ordered_relations() if str(each) in told]

    def _map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        self._node_type(node_type)
        return self.layout.map(node_type, name)

    def _node_type(self, node_type: str) -> NodeType:
        if node_type not in self.schema.node_types:
            known = sorted(self.schema.node_types)
            raise GraphError(f"{self.path}: node type {node_type!r}: expected one of {known}")
        return self.schema.node_types[node_type]

    def _edge_type(self, relation: Relation) -> EdgeType:
        if relation not in self.schema.relations:
            known = [str(each) for each in self.schema.ordered_relations()]
            raise GraphError(f"{self.path}: relation {relation}: expected one of {known}")
        return self.schema.relations[relation]


def read_description(path: Path) -> dict[str, Any]:
    """partition.json of a partitioned directory, its required fields checked.

    Raises
    ------
    GraphError: missing or unreadable file, unknown schema version, a field missing or mistyped.
    """
    file = path / DESCRIPTION_FILE
    description = read_json(
        file, "no such file; write a partitioned directory with `hopper partition`"
    )
    for name, kind in _REQUIRED.items():
        found = description.get(name)
        if not isinstance(found, kind) or isinstance(found, bool):
            raise GraphError(f"{file}: field {name!r}: expected {kind.__name__}, found {found!r}")
    if description["topology"] not in LAYOUTS:
        raise GraphError(
            f"{file}: field 'topology': expected one of {', '.join(LAYOUTS)}, found "
            f"{description['topology']!r}"
        )
    if description["schema"] != PARTITION_SCHEMA_VERSION:
        raise GraphError(
            f"{file}: field 'schema': expected version {PARTITION_SCHEMA_VERSION}, "
            f"found {description['schema']}"
        )
    return description


def _check_counts(
    schema: GraphSchema, book: PartitionBook, description: Mapping[str, Any], where: str
) -> None:
    featured = {str(each) for each, kind in schema.relations.items() if kind.feature_dim}
    of_edges = "relations whose edges have features"
    for field, what, expected, found in (
        ("offsets", "node types", set(schema.node_types), set(description["offsets"])),
        ("edge_offsets", of_edges, featured, set(description.get("edge_offsets", {}))),
    ):
        if found != expected:
            raise GraphError(
                f"{where}: field {field!r}: expected the {what} {sorted(expected)}, found "
                f"{sorted(found)}; write it anew with `hopper partition`"
            )
        for name in sorted(expected):
            count = schema.table(name).count
            if book.total(name) != count:
                raise GraphError(
                    f"{where}: field '{field}.{name}': expected to end at {count} (graph.json), "
                    f"found {book.total(name)}"
                )
