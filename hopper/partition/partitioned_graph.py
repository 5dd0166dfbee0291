"""A partitioned directory, opened: topology in global ids, rows by server, maps both ways.

Arrays are read-only memory maps, so every rank of a machine shares one copy of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.check_values import label_format
from hopper.graph.directory import open_topology
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.schema_json import read_schema
from hopper.graph.topology import Topology
from hopper.partition.book import PartitionBook

PARTITION_SCHEMA_VERSION: Final = 1

DESCRIPTION_FILE: Final = "partition.json"

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
        book = PartitionBook(description["servers"], description["offsets"], where)
        _check_counts(schema, book, where)
        return cls(root, schema, book, description)

    def topology(self, relation: Relation) -> Topology:
        """The in-edges of every node (replicated), rows and sources in global ids.

        Raises
        ------
        GraphError: an unknown relation; a missing or misshapen array.
        """
        edges = self._edge_type(relation).count
        sources = self.schema.node_types[relation.src].count
        destinations = self.schema.node_types[relation.dst].count
        return open_topology(self.path, relation, edges, sources, destinations)

    def original_ids(self, node_type: str) -> NDArray[np.int64]:
        """[count] int64: the original id of each global id."""
        return self._map(node_type, "original_ids")

    def global_ids(self, node_type: str) -> NDArray[np.int64]:
        """[count] int64: the global id of each original id."""
        return self._map(node_type, "global_ids")

    def features(self, node_type: str, server: int) -> NDArray[Any] | None:
        """[nodes of the server, dim] float32 or float16 by local row; None without features."""
        described = self._node_type(node_type)
        if described.feature_dim is None or described.feature_dtype is None:
            return None
        file = layout.features_file(server_folder(self.path, server), node_type)
        shape = (self.book.count(node_type, server), described.feature_dim)
        return open_array(file, f"features of {node_type}", described.feature_dtype, shape)

    def labels(self, node_type: str, server: int) -> NDArray[Any] | None:
        """[nodes of the server] or [nodes of the server, classes] by local row; None if none."""
        self._node_type(node_type)
        if node_type not in self.schema.labels:
            return None
        rows = self.book.count(node_type, server)
        dtype, shapes = label_format(self.schema.labels[node_type], rows)
        file = layout.labels_file(server_folder(self.path, server), node_type)
        return open_array(file, f"labels of {node_type}", dtype, *shapes)

    def edge_features(self, relation: Relation, server: int) -> NDArray[Any] | None:
        """[in-edges of the server's nodes, dim]; None without edge features.

        Row r belongs to position ``indptr[offsets[dst][server]] + r`` of :meth:`topology`.
        """
        described = self._edge_type(relation)
        if described.feature_dim is None or described.feature_dtype is None:
            return None
        self.book.count(relation.dst, server)
        offsets = self.book.offsets[relation.dst][server : server + 2]
        start, stop = self.topology(relation).indptr[offsets]
        file = layout.edge_features_file(server_folder(self.path, server), relation)
        shape = (int(stop - start), described.feature_dim)
        return open_array(file, f"edge features of {relation}", described.feature_dtype, shape)

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

    def _map(self, node_type: str, name: Literal["original_ids", "global_ids"]) -> NDArray[Any]:
        count = self._node_type(node_type).count
        file = map_file(self.path, node_type, name)
        return open_array(file, f"{name} of {node_type}", np.int64, (count,))

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


def server_folder(path: Path, server: int) -> Path:
    """The folder that holds what one server alone needs."""
    return path / f"server-{server}"


def map_file(path: Path, node_type: str, name: Literal["original_ids", "global_ids"]) -> Path:
    """The file of one of a node type's two maps."""
    return path / "maps" / node_type / f"{name}.npy"


def read_description(path: Path) -> dict[str, Any]:
    """partition.json of a partitioned directory, its required fields checked.

    Raises
    ------
    GraphError: missing or unreadable file, unknown schema version, a field missing or mistyped.
    """
    file = path / DESCRIPTION_FILE
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GraphError(
            f"{file}: no such file; write a partitioned directory with `hopper partition`"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise GraphError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(description, dict):
        raise GraphError(f"{file}: expected a JSON object, found {type(description).__name__}")
    for field, kind in _REQUIRED.items():
        found = description.get(field)
        if not isinstance(found, kind) or isinstance(found, bool):
            raise GraphError(f"{file}: field {field!r}: expected {kind.__name__}, found {found!r}")
    if description["schema"] != PARTITION_SCHEMA_VERSION:
        raise GraphError(
            f"{file}: field 'schema': expected version {PARTITION_SCHEMA_VERSION}, "
            f"found {description['schema']}"
        )
    return description


def _check_counts(schema: GraphSchema, book: PartitionBook, where: str) -> None:
    if set(book.offsets) != set(schema.node_types):
        raise GraphError(
            f"{where}: field 'offsets': expected the node types {sorted(schema.node_types)}, "
            f"found {sorted(book.offsets)}"
        )
    for node_type, described in schema.node_types.items():
        if book.total(node_type) != described.count:
            raise GraphError(
                f"{where}: field 'offsets.{node_type}': expected to end at {described.count} "
                f"(graph.json), found {book.total(node_type)}"
            )
