"""Layouts of a partitioned graph: which server stores which topology and rows.

Under :class:`Replicated`, nodes are divided and every server has all topology. Under
:class:`DividedTopology`, a server has the in-edges of its nodes and its halo. Under
:class:`ByDimension`, features are divided by dimension. Under :class:`ByRelation`, whole relations
are divided: a server stores its relations and all nodes of their types. Of a root relation that is
too large for a server, it stores some of the edges, and the edges and rows that hops from their
sources read. All servers have the target relations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.directory import open_topology
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.book import PartitionBook

ROOTS_FOLDER: Final = "roots"
"""Name of the folder, in a server's folder, with its part of a root relation's edges into roots."""
DESCRIPTION_FILE: Final = "partition.json"
MapName = Literal["original_ids", "global_ids"]


class Part(NamedTuple):
    """The part of its root relation's edges that a server stores."""

    place: int
    """index of the part"""
    parts: int
    """number of parts"""


WHOLE: Final = Part(0, 1)


@dataclass(frozen=True)
class StoredRows:
    """The rows of a table that a server stores.

    Attributes
    ----------
    first, stop: range of global ids.
    ids: [n] int64, ascending, the ids in this range whose rows are stored; None = all.
    """

    first: int
    stop: int
    ids: NDArray[np.int64] | None = None

    @property
    def count(self) -> int:
        """Number of stored rows."""
        return self.stop - self.first if self.ids is None else self.ids.size

    def find(self, wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Find the local rows of global ids.

        Returns
        -------
        [n] int64 local rows, and [n] bool whether each row is stored. Rows that are not stored have
        arbitrary numbers.
        """
        if self.ids is None:
            return wanted - self.first, (wanted >= self.first) & (wanted < self.stop)
        rows = np.searchsorted(self.ids, wanted)
        if not self.ids.size:
            return rows, np.zeros(wanted.size, np.bool_)
        return rows, np.take(self.ids, rows, mode="clip") == wanted

    def contains(self, wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] bool: whether the row of each global id is stored."""
        return self.find(wanted)[1]


class Columns(NamedTuple):
    """A range of columns of features."""

    first: int
    stop: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.stop - self.first


def divide_columns(dim: int, servers: int) -> list[Columns]:
    """Divide the columns of features among servers."""
    bounds = [dim * server // servers for server in range(servers + 1)]
    return [Columns(first, stop) for first, stop in pairwise(bounds)]


@dataclass(frozen=True)
class Holding:
    """What one server stores of a graph divided by relation.

    Attributes
    ----------
    roots: the root relations that it aggregates, in canonical order.
    place: index of the server among those with the same root relations.
    copies: number of servers with the same root relations.
    relations, node_types: all relations and node types that it stores.
    part: its part of a root relation's edges. With several parts there is one root relation.
    held: number of nodes by type whose rows it stores, if it has one of several parts.
    """

    roots: tuple[Relation, ...]
    place: int
    copies: int
    relations: frozenset[Relation]
    node_types: frozenset[str]
    part: Part = WHOLE
    held: Mapping[str, int] = field(default_factory=dict)


class Layout(ABC):
    """Tells which server stores which topology and rows of a partitioned graph.

    Attributes
    ----------
    name: the layout's name in partition.json.
    draws_alone: whether a rank makes all draws of its engine without asking other servers.
    reads_remote_rows: whether ranks may read rows of other servers' nodes.
    is_renumbered: whether global ids differ from original ids.
    holdings: what each server stores, where whole relations are divided; empty where nodes are.
    relations: the relations that any server stores, in canonical order.
    """

    name: ClassVar[str]
    draws_alone: ClassVar[bool] = True
    reads_remote_rows: ClassVar[bool] = True
    is_renumbered: ClassVar[bool] = True
    holdings: Sequence[Holding] = ()

    def __init__(
        self, path: Path, schema: GraphSchema, book: PartitionBook, description: dict[str, Any]
    ) -> None:
        self.path = path
        self.description = description
        self._schema = schema
        self._book = book
        self.relations = schema.ordered_relations()
        self._maps: dict[tuple[str, MapName], NDArray[np.int64]] = {}
        """maps that have been opened"""

    @abstractmethod
    def explain(self, where: str) -> str:
        """Say, for an error, how the graph ``where`` is divided that an engine cannot train on."""

    @abstractmethod
    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a relation's CSC, as :meth:`hopper.partition.PartitionedGraph.topology` says."""

    @abstractmethod
    def stored_topologies(
        self, servers: Sequence[int]
    ) -> Iterator[tuple[Topology, Relation, Path]]:
        """Iterate over the topologies in the folders of some servers, and those for all servers.

        Each comes with its relation and its folder.
        """

    def stored(self, node_type: str, server: int) -> StoredRows:
        """The rows that a server stores of a node type, or of a relation as ``src/rel/dst``."""
        return StoredRows(*self._book.range(node_type, server))

    def has_whole_rows(self, table: str) -> bool:
        """Whether servers store whole rows of a node type, or of a relation as ``src/rel/dst``."""
        return True

    def columns(self, node_type: str, server: int) -> Columns:
        """The columns of a type's features that a server stores."""
        return Columns(0, self._schema.table(node_type).feature_dim or 0)

    def map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        """[count] int64: a node type's map from original to global ids, or back."""
        if (node_type, name) not in self._maps:
            count = self._schema.node_types[node_type].count
            file = map_file(self.path, node_type, name)
            ids = open_array(file, f"{name} of {node_type}", np.int64, (count,))
            self._maps[node_type, name] = ids
        return self._maps[node_type, name]

    def _counts(self, relation: Relation) -> tuple[int, int]:
        """Number of nodes of a relation's source type, and of its destination type."""
        kinds = self._schema.node_types
        return kinds[relation.src].count, kinds[relation.dst].count

    def _open(
        self,
        folder: Path,
        relation: Relation,
        edges: int | None = None,
        degrees: Path | None = None,
    ) -> Topology:
        """Map a relation's CSC in a folder, with the arrays that draws by weight and time read.

        Parameters and errors are those of :func:`hopper.graph.directory.open_topology`.
        """
        return open_topology(
            *(folder, relation, edges, *self._counts(relation), degrees),
            weighted=self._schema.relations[relation].weighted,
            timed=self._schema.is_timed(relation),
        )


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


class ByDimension(Replicated):
    """Every server has some columns of all nodes' features, and all topology and labels.

    This is the layout of P3 (section 3.1).
    """

    name = "by_dimension"

    def explain(self, where: str) -> str:
        """Say that features are divided by dimension."""
        return f"the features of {where} are divided by dimension, so no server has a whole row"

    def stored(self, node_type: str, server: int) -> StoredRows:
        """All nodes of a type; or the edges of a relation whose destinations are the server's."""
        if node_type not in self._schema.node_types:
            return super().stored(node_type, server)
        return StoredRows(0, self._book.total(node_type))

    def has_whole_rows(self, table: str) -> bool:
        """Whether servers store whole rows: those of edges, or if there is one server."""
        return self._book.servers == 1 or table not in self._schema.node_types

    def columns(self, node_type: str, server: int) -> Columns:
        """The columns of a type's features that a server stores."""
        if node_type not in self._schema.node_types:
            return super().columns(node_type, server)
        dim = self._schema.node_types[node_type].feature_dim or 0
        return divide_columns(dim, self._book.servers)[server]


class ByRelation(Layout):
    """Whole relations are divided, or parts of root relations (Heta, section 5)."""

    name = "by_relation"
    reads_remote_rows = False
    is_renumbered = False

    def __init__(
        self, path: Path, schema: GraphSchema, book: PartitionBook, description: dict[str, Any]
    ) -> None:
        super().__init__(path, schema, book, description)
        self.holdings = _read_holdings(schema, description, str(path / DESCRIPTION_FILE))
        self.relations = [
            relation
            for relation in schema.ordered_relations()
            if any(relation in holding.relations for holding in self.holdings)
        ]
        self._held_ids: dict[tuple[str, int], NDArray[np.int64]] = {}

    def explain(self, where: str) -> str:
        """Say that relations are divided."""
        return f"{where} is divided by relation, so no server has a whole neighbourhood"

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a copy of a relation's CSC; every server has a copy of target relations."""
        edges = self._schema.relations[relation].count
        if server is None and relation in self._schema.target_relations:
            return self._open(self.path, relation, edges)
        holders = self._find_holders(relation, server)
        whole = [holder for holder in holders if self.holdings[holder].part.parts == 1]
        if server is None and not whole:
            return self._join_parts(relation, holders)
        folder = server_folder(self.path, (whole or holders)[0])
        return self._open(folder, relation, edges if whole else None)

    def root_topology(self, relation: Relation, server: int) -> Topology:
        """Map the in-edges of roots that a server stores of one of its root relations."""
        if self.holdings[server].part.parts == 1:
            return self.topology(relation, server)
        folder = server_folder(self.path, server) / ROOTS_FOLDER
        part = open_topology(folder, relation, None, *self._counts(relation))
        file = layout.topology_file(folder, relation, "positions")
        what = f"positions of {relation}"
        return replace(part, positions=open_array(file, what, np.int64, part.indices.shape))

    def root_lists(self, relation: Relation, server: int) -> Topology:
        """Make whole lists of roots' in-edges, with gaps for edges of other servers' parts."""
        part = self.root_topology(relation, server)
        if part.positions is None:
            return part
        is_root = np.zeros(part.in_degrees.size, np.bool_)
        for name, count in self._schema.splits.items():
            file = layout.split_file(self.path, name)
            is_root[open_array(file, f"split {name}", np.int64, (count,))] = True
        indptr = np.concatenate(([0], np.cumsum(np.where(is_root, part.in_degrees, 0))))
        folder = server_folder(self.path, server) / ROOTS_FOLDER
        arrays: dict[str, Any] = {}
        for array, dtype in layout.draw_arrays(self._schema, relation).items():
            file, what = layout.topology_file(folder, relation, array), f"{array} of {relation}"
            arrays[array] = open_array(file, what, dtype, (int(indptr[-1]),))
        indices = np.full(indptr[-1], -1)
        rows = np.repeat(np.arange(is_root.size), np.diff(part.indptr))
        indices[indptr[rows] + part.positions] = part.indices
        return replace(
            part,
            indptr=indptr,
            indices=indices,
            edge_ids=np.broadcast_to(np.int64(-1), indices.shape),
            positions=None,
            has_gaps=True,
            **arrays,
        )

    def stored_topologies(
        self, servers: Sequence[int]
    ) -> Iterator[tuple[Topology, Relation, Path]]:
        """Iterate over the target relations, and the relations and parts of some servers."""
        for relation in self._schema.target_relations:
            yield self.topology(relation, None), relation, self.path
        for server in servers:
            holding, folder = self.holdings[server], server_folder(self.path, server)
            for relation in holding.relations:
                yield self.topology(relation, server), relation, folder
            for relation in holding.roots if holding.part.parts > 1 else ():
                yield self.root_topology(relation, server), relation, folder / ROOTS_FOLDER

    def stored(self, node_type: str, server: int) -> StoredRows:
        """All nodes or edges of a type or relation that the server stores, or those of its part."""
        holding, total = self.holdings[server], self._book.total(node_type)
        if node_type not in self._schema.node_types:
            # A server stores all edges or none here; features of parts are read in another way.
            has_relation = any(str(relation) == node_type for relation in holding.relations)
            return StoredRows(0, total if has_relation and holding.part.parts == 1 else 0)
        if node_type not in holding.node_types:
            return StoredRows(0, 0)
        if holding.part.parts == 1:
            return StoredRows(0, total)
        if (node_type, server) not in self._held_ids:
            file = held_file(server_folder(self.path, server), node_type)
            what, shape = f"held ids of {node_type}", (holding.held[node_type],)
            self._held_ids[node_type, server] = open_array(file, what, np.int64, shape)
        return StoredRows(0, total, self._held_ids[node_type, server])

    def map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        """[count] int64: 0, 1, 2, ..., because global ids are original ids."""
        return _identity(self._schema.node_types[node_type].count)

    def _join_parts(self, relation: Relation, holders: Sequence[int]) -> Topology:
        """Join the parts of a relation that no server has whole, in memory.

        The result has every edge that hops from the nodes of splits read.
        """
        copies = [self.topology(relation, server) for server in holders]
        lists = list(copies)
        for server in holders:
            if relation in self.holdings[server].roots:
                copies.append(self.root_topology(relation, server))
                lists.append(self.root_lists(relation, server))
        rows, positions, list_indices = [], [], []
        for copy, whole_lists in zip(copies, lists, strict=True):
            counts = np.diff(copy.indptr)
            rows.append(np.repeat(np.arange(counts.size), counts))
            ascending = np.arange(copy.indices.size) - np.repeat(copy.indptr[:-1], counts)
            positions.append(ascending if copy.positions is None else copy.positions)
            list_indices.append(whole_lists.indptr[rows[-1]] + positions[-1])
        row, position = np.concatenate(rows), np.concatenate(positions)
        order = np.lexsort((position, row))
        row, position = row[order], position[order]
        # Several copies may have the same edge, which is taken once.
        first = np.ones(order.size, np.bool_)
        first[1:] = (row[1:] != row[:-1]) | (position[1:] != position[:-1])
        edges = order[first]
        counts = np.bincount(row[first], minlength=copies[0].in_degrees.size)
        # A node's list is whole wherever it is stored, so its edges have the same positions.
        arrays: dict[str, Any] = {}
        for name in layout.draw_arrays(self._schema, relation):
            pairs = zip(lists, list_indices, strict=True)
            values = [getattr(whole_lists, name)[indices] for whole_lists, indices in pairs]
            arrays[name] = np.concatenate(values)[edges]
        return Topology(
            indptr=np.concatenate(([0], np.cumsum(counts))),
            indices=np.concatenate([copy.indices for copy in copies])[edges],
            edge_ids=np.concatenate([copy.edge_ids for copy in copies])[edges],
            in_degrees=copies[0].in_degrees,
            out_degrees=copies[0].out_degrees,
            **arrays,
        )

    def _find_holders(self, relation: Relation, server: int | None) -> list[int]:
        """Find the servers that store a relation, among all or one."""
        servers = range(self._book.servers) if server is None else [server]
        holders = [number for number in servers if relation in self.holdings[number].relations]
        if not holders:
            who = "no server" if server is None else f"not server {server}, which"
            raise GraphError(
                f"{self.path}: relation {relation}: {who} stores it: the graph was divided for "
                f"{self.description['meta']['layers']} hops from "
                f"{', '.join(map(repr, self._schema.root_types))}"
            )
        return holders


LAYOUTS: Final[dict[str, type[Layout]]] = {
    kind.name: kind for kind in (Replicated, DividedTopology, ByDimension, ByRelation)
}
"""The layouts by their names in partition.json."""


@cache
def _identity(count: int) -> NDArray[np.int64]:
    """[count] int64: the map of ids that do not change."""
    ids = np.arange(count, dtype=np.int64)
    ids.setflags(write=False)
    return ids


def _read_holdings(
    schema: GraphSchema, description: dict[str, Any], where: str
) -> Sequence[Holding]:
    """Read from partition.json what every server stores."""
    known = {str(relation): relation for relation in schema.relations}
    try:
        meta = description["meta"]
        holdings = tuple(
            Holding(
                roots=tuple(sorted(known[name] for name in share["roots"])),
                place=int(share["replica"][0]),
                copies=int(share["replica"][1]),
                relations=frozenset(known[name] for name in share["relations"]),
                node_types=frozenset(share["node_types"]),
                part=Part(*map(int, share.get("part", WHOLE))),
                held={name: int(count) for name, count in share.get("held", {}).items()},
            )
            for share in meta["servers"]
        )
        roots = meta["target"], *meta.get("others", ())
        fits = roots == schema.root_types and len(holdings) == description["servers"]
        fits = fits and isinstance(meta["layers"], int)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise GraphError(f"{where}: field 'meta': cannot be read: {error!r}") from None
    types = set(schema.node_types)
    if not fits or not all(holding.node_types <= types for holding in holdings):
        raise GraphError(f"{where}: field 'meta': does not fit graph.json and field 'servers'")
    return holdings


def server_folder(path: Path, server: int) -> Path:
    """The folder of the files that only one server needs."""
    return path / f"server-{server}"


def held_file(folder: Path, node_type: str) -> Path:
    """The file of the ids whose rows a server stores, if it stores some of a type's rows."""
    return folder / "held" / f"{node_type}.npy"


def map_file(path: Path, node_type: str, name: MapName) -> Path:
    """The file of one of a node type's two maps."""
    return path / "maps" / node_type / f"{name}.npy"


def ranks_file(path: Path, node_type: str) -> Path:
    """The file of each node's rank among those of its server, if ranks follow locality."""
    return path / "ranks" / f"{node_type}.npy"
