"""A partitioned directory, opened: topology in global ids, rows by server, maps both ways.

Arrays are read-only memory maps, so every rank of a machine shares one copy of them.

Nodes are divided, and topology is replicated or lies with its destinations (``--topology
partitioned``); or whole relations are divided (``--method meta``): then a server stores all nodes
of the types that its relations touch, and those relations alone; or, of a root relation that is too
large for a server, some of the edges, and what their sources read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.check_values import label_format
from hopper.graph.directory import open_topology
from hopper.graph.json_file import read_json
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.schema_json import read_schema
from hopper.graph.topology import Topology
from hopper.partition.book import PartitionBook

PARTITION_SCHEMA_VERSION: Final = 1

DESCRIPTION_FILE: Final = "partition.json"

TOPOLOGIES: Final = ("replicated", "partitioned", "by_relation")
ROOTS_FOLDER: Final = "roots"
"""in a server's folder: the part of a root relation's edges that it aggregates for the roots"""
_REQUIRED = {"schema": int, "method": str, "servers": int, "offsets": dict, "topology": str}


class Part(NamedTuple):
    """Which part of its root relation's edges a server stores, of how many."""

    place: int
    parts: int


WHOLE: Final = Part(0, 1)


@dataclass(frozen=True)
class StoredRows:
    """The nodes of a type whose rows a server stores.

    Attributes
    ----------
    first, stop: a range of global ids, or, of ``ids``, what bounds them.
    ids: [n] int64, ascending, where they are some of that range.
    """

    first: int
    stop: int
    ids: NDArray[np.int64] | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return self.stop - self.first if self.ids is None else self.ids.size

    def find(self, wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """[n] int64 and [n] bool: the local rows of these global ids, and which of them are
        stored; the rows of others mean nothing."""
        if self.ids is None:
            return wanted - self.first, (wanted >= self.first) & (wanted < self.stop)
        rows = np.searchsorted(self.ids, wanted)
        if not self.ids.size:
            return rows, np.zeros(wanted.size, np.bool_)
        return rows, np.take(self.ids, rows, mode="clip") == wanted

    def contains(self, wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] bool: which of these global ids are stored."""
        return self.find(wanted)[1]


@dataclass(frozen=True)
class Holding:
    """What one server of a graph divided by relation stores.

    Attributes
    ----------
    roots: the root relations that it aggregates, in canonical order.
    place, copies: which of the servers with these root relations it is, and how many there are.
    relations, node_types: all that it stores.
    part: of the root relation's edges; of one root relation alone where there are several parts.
    held: how many nodes of a type it has rows of, where it stores one of several parts.
    """

    roots: tuple[Relation, ...]
    place: int
    copies: int
    relations: frozenset[Relation]
    node_types: frozenset[str]
    part: Part = WHOLE
    held: Mapping[str, int] = field(default_factory=dict)


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
        self._held_ids: dict[tuple[str, int], NDArray[np.int64]] = {}

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
            is: other nodes then have none; of a server with a part of a root relation, the in-edges
            of what is expanded below roots. None = any server's that has a copy, and all in-edges
            (put together in memory where topology is divided, or where servers have parts: those
            that hops from the splits read).

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
        if not self.holdings:
            return open_topology(self.path, relation, edges, sources, destinations)
        holders = self._holders(relation, server)
        whole = [each for each in holders if self.holdings[each].part.parts == 1]
        if server is None and not whole:
            return self._all_parts(relation, holders)
        chosen = (whole or holders)[0]
        folder = server_folder(self.path, chosen)
        return open_topology(folder, relation, None if not whole else edges, sources, destinations)

    def root_topology(self, relation: Relation, server: int) -> Topology:
        """The in-edges of roots that a server stores of one of its root relations, where relations
        are divided; errors as of :meth:`topology`."""
        if self.holdings[server].part.parts == 1:
            return self.topology(relation, server)
        kinds = self.schema.node_types
        sizes = kinds[relation.src].count, kinds[relation.dst].count
        folder = server_folder(self.path, server) / ROOTS_FOLDER
        some = open_topology(folder, relation, None, *sizes)
        file = layout.topology_file(folder, relation, "positions")
        what = f"positions of {relation}"
        return replace(some, positions=open_array(file, what, np.int64, some.indices.shape))

    def _all_parts(self, relation: Relation, holders: Sequence[int]) -> Topology:
        """What servers have of a relation of which none has all, put together in memory: every edge
        that hops from a split's nodes read."""
        copies = [self.topology(relation, server) for server in holders]
        copies += [
            self.root_topology(relation, server)
            for server in holders
            if relation in self.holdings[server].roots
        ]
        rows, positions = [], []
        for copy in copies:
            counts = np.diff(copy.indptr)
            rows.append(np.repeat(np.arange(counts.size), counts))
            whole = np.arange(copy.indices.size) - np.repeat(copy.indptr[:-1], counts)
            positions.append(whole if copy.positions is None else copy.positions)
        row, position = np.concatenate(rows), np.concatenate(positions)
        order = np.lexsort((position, row))
        row, position = row[order], position[order]
        # An edge that several copies have counts once.
        first = np.ones(order.size, np.bool_)
        first[1:] = (row[1:] != row[:-1]) | (position[1:] != position[:-1])
        edges = order[first]
        counts = np.bincount(row[first], minlength=copies[0].in_degrees.size)
        return Topology(
            indptr=np.concatenate(([0], np.cumsum(counts))),
            indices=np.concatenate([copy.indices for copy in copies])[edges],
            edge_ids=np.concatenate([copy.edge_ids for copy in copies])[edges],
            in_degrees=copies[0].in_degrees,
            out_degrees=copies[0].out_degrees,
        )

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

    def stored(self, node_type: str, server: int) -> StoredRows:
        """The nodes whose rows a server stores.

        Raises
        ------
        GraphError: an unknown node type or server; a missing or misshapen array.
        """
        first, stop = self.book.range(node_type, server)
        if not self.holdings:
            return StoredRows(first, stop)
        held, total = self.holdings[server], self.book.total(node_type)
        if node_type not in held.node_types:
            return StoredRows(0, 0)
        if held.part.parts == 1:
            return StoredRows(0, total)
        if (node_type, server) not in self._held_ids:
            file = held_file(server_folder(self.path, server), node_type)
            what, shape = f"held ids of {node_type}", (held.held[node_type],)
            self._held_ids[node_type, server] = open_array(file, what, np.int64, shape)
        return StoredRows(0, total, self._held_ids[node_type, server])

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
        shape = (self.stored(node_type, server).count, described.feature_dim)
        return open_array(file, f"features of {node_type}", described.feature_dtype, shape)

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
        """[in-edges of the server's nodes, dim]; None without edge features.

        Row r belongs to position ``indptr[offsets[dst][server]] + r`` of the server's
        :meth:`topology`.
        """
        if self._edge_type(relation).feature_dim is None:
            return None
        stored = self.stored(relation.dst, server)
        start, stop = self.topology(relation, server).indptr[[stored.first, stored.stop]]
        return self._edge_rows(relation, server_folder(self.path, server), int(stop - start))

    def root_edge_features(self, relation: Relation, server: int) -> NDArray[Any] | None:
        """[edges, dim], in the order of :meth:`root_topology`; None without edge features."""
        if self.holdings[server].part.parts == 1:
            return self.edge_features(relation, server)
        edges = self.root_topology(relation, server).indices.size
        return self._edge_rows(relation, server_folder(self.path, server) / ROOTS_FOLDER, edges)

    def _edge_rows(self, relation: Relation, folder: Path, edges: int) -> NDArray[Any] | None:
        described = self._edge_type(relation)
        if described.feature_dim is None or described.feature_dtype is None:
            return None
        file, shape = layout.edge_features_file(folder, relation), (edges, described.feature_dim)
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

    def _holders(self, relation: Relation, server: int | None) -> list[int]:
        """The servers whose copies of a relation may be read."""
        servers = range(self.book.servers) if server is None else [server]
        found = [each for each in servers if relation in self.holdings[each].relations]
        if not found:
            who = "no server" if server is None else f"not server {server}, which"
            raise GraphError(
                f"{self.path}: relation {relation}: {who} stores it: the graph was divided for "
                f"{self.description['meta']['layers']} hops from {self.schema.target_type()!r}"
            )
        return found

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
                part=Part(*map(int, share.get("part", WHOLE))),
                held={each: int(count) for each, count in share.get("held", {}).items()},
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


def held_file(folder: Path, node_type: str) -> Path:
    """The file of the ids whose rows a server stores, where these are some of a type's."""
    return folder / "held" / f"{node_type}.npy"


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
    description = read_json(
        file, "no such file; write a partitioned directory with `hopper partition`"
    )
    for name, kind in _REQUIRED.items():
        found = description.get(name)
        if not isinstance(found, kind) or isinstance(found, bool):
            raise GraphError(f"{file}: field {name!r}: expected {kind.__name__}, found {found!r}")
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
