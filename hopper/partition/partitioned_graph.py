"""A partitioned directory, opened: topology in global ids, rows by server, maps both ways.

Arrays are read-only memory maps, so every rank of a machine shares one copy of them.

Nodes are divided, and topology is replicated or lies with its destinations (``--topology
partitioned``); or whole relations are divided (``--method meta``): then a server stores all nodes
of the types that its relations touch, and those relations alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
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

TOPOLOGIES: Final = ("replicated", "partitioned", "by_relation")
_REQUIRED = {"schema": int, "method": str, "servers": int, "offsets": dict, "topology": str}


@dataclass(frozen=True)
class Holding:
    """What one server of a graph divided by relation stores.

    Attributes
    ----------
    roots: the root relations that it aggregates, in canonical order.
    place, copies: which of the servers with these root relations it is, and how many there are.
    relations, node_types: all that it stores.
    """

    roots: tuple[Relation, ...]
    place: int
    copies: int
    relations: frozenset[Relation]
    node_types: frozenset[str]


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
        self.topology_partitioned: bool = description["topology"] == "partitioned"
        """whether a server has the in-edges of its own nodes alone"""
        self.holdings = _read_holdings(schema, description, str(path / DESCRIPTION_FILE))
        """by server, where whole relations were divided; empty where nodes were"""
        self.relations = [
            each
            for each in schema.ordered_relations()
            if not self.holdings or any(each in held.relations for held in self.holdings)
        ]
        """those that any server stores, in canonical order"""

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

    def topology(self, relation: Relation, server: int | None = None) -> Topology:
        """The in-edges of every node, rows and sources in global ids.

        Parameters
        ----------
        server: whose copy, where relations are divided, and whose nodes' in-edges, where topology
            is: other nodes then have none. None = any server's that has a copy, and all in-edges
            (put together in memory where topology is divided).

        Raises
        ------
        GraphError: an unknown relation, or one that the server does not store; a missing or
            misshapen array.
        """
        edges = self._edge_type(relation).count
        sources = self.schema.node_types[relation.src].count
        destinations = self.schema.node_types[relation.dst].count
        if self.topology_partitioned:
            if server is None:
                return self._all_in_edges(relation)
            own = server_folder(self.path, server)
            return open_topology(own, relation, None, sources, destinations, self.path)
        folder = self.path
        if self.holdings:
            folder = server_folder(self.path, self._holder(relation, server))
        return open_topology(folder, relation, edges, sources, destinations)

    def _all_in_edges(self, relation: Relation) -> Topology:
        """What all servers have, put together in memory."""
        parts = [self.topology(relation, server) for server in range(self.book.servers)]
        return Topology(
            # A server's nodes are empty rows elsewhere, and servers' nodes follow each other.
            indptr=np.sum([part.indptr for part in parts], axis=0),
            indices=np.concatenate([part.indices for part in parts]),
            edge_ids=np.concatenate([part.edge_ids for part in parts]),
            in_degrees=parts[0].in_degrees,
            out_degrees=parts[0].out_degrees,
        )

    def stored_range(self, node_type: str, server: int) -> tuple[int, int]:
        """The global ids whose rows a server stores, first and past the last.

        Raises
        ------
        GraphError: an unknown node type or server.
        """
        first, stop = self.book.range(node_type, server)
        if not self.holdings:
            return first, stop
        held = node_type in self.holdings[server].node_types
        return 0, self.book.total(node_type) if held else 0

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
        first, stop = self.stored_range(node_type, server)
        shape = (stop - first, described.feature_dim)
        return open_array(file, f"features of {node_type}", described.feature_dtype, shape)

    def labels(self, node_type: str, server: int) -> NDArray[Any] | None:
        """[nodes of the server] or [nodes of the server, classes] by local row; None if none."""
        self._node_type(node_type)
        if node_type not in self.schema.labels:
            return None
        first, stop = self.stored_range(node_type, server)
        dtype, shapes = label_format(self.schema.labels[node_type], stop - first)
        file = layout.labels_file(server_folder(self.path, server), node_type)
        return open_array(file, f"labels of {node_type}", dtype, *shapes)

    def edge_features(self, relation: Relation, server: int) -> NDArray[Any] | None:
        """[in-edges of the server's nodes, dim]; None without edge features.

        Row r belongs to position ``indptr[offsets[dst][server]] + r`` of the server's
        :meth:`topology`.
        """
        described = self._edge_type(relation)
        if described.feature_dim is None or described.feature_dtype is None:
            return None
        rows = list(self.stored_range(relation.dst, server))
        start, stop = self.topology(relation, server).indptr[rows]
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
        if self.holdings:
            return _unchanged(count)
        file = map_file(self.path, node_type, name)
        return open_array(file, f"{name} of {node_type}", np.int64, (count,))

    def _holder(self, relation: Relation, server: int | None) -> int:
        """The server whose copy of a relation is read."""
        servers = range(self.book.servers) if server is None else [server]
        found = [each for each in servers if relation in self.holdings[each].relations]
        if not found:
            who = "no server" if server is None else f"not server {server}, which"
            raise GraphError(
                f"{self.path}: relation {relation}: {who} stores it: the graph was divided for "
                f"{self.description['meta']['layers']} hops from {self.schema.target_type()!r}"
            )
        return found[0]

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


@cache
def _unchanged(count: int) -> NDArray[np.int64]:
    """[count] int64: the maps where nodes were not numbered anew."""
    ids = np.arange(count, dtype=np.int64)
    ids.setflags(write=False)
    return ids


def _read_holdings(
    schema: GraphSchema, description: dict[str, Any], where: str
) -> Sequence[Holding]:
    """What every server stores, where partition.json tells of relations."""
    if description["topology"] != "by_relation":
        return ()
    known = {str(relation): relation for relation in schema.relations}
    try:
        meta = description["meta"]
        holdings = tuple(
            Holding(
                roots=tuple(sorted(known[each] for each in share["roots"])),
                place=int(share["replica"][0]),
                copies=int(share["replica"][1]),
                relations=frozenset(known[each] for each in share["relations"]),
                node_types=frozenset(share["node_types"]),
            )
            for share in meta["servers"]
        )
        fits = meta["target"] == schema.target and len(holdings) == description["servers"]
        fits = fits and isinstance(meta["layers"], int)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise GraphError(f"{where}: field 'meta': cannot be read: {error!r}") from None
    if not fits or not all(each.node_types <= set(schema.node_types) for each in holdings):
        raise GraphError(f"{where}: field 'meta': does not fit graph.json and field 'servers'")
    return holdings


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
    if description["topology"] not in TOPOLOGIES:
        raise GraphError(
            f"{file}: field 'topology': expected one of {', '.join(TOPOLOGIES)}, found "
            f"{description['topology']!r}"
        )
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
