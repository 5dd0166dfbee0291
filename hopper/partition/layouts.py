"""Who has which part of a partitioned graph: the ways in which topology and rows lie.

Nodes are divided, and topology is replicated (:class:`Replicated`) or lies with its destinations
and with those nearby (:class:`DividedTopology`); or features are divided by dimension
(:class:`ByDimension`); or whole relations are divided (:class:`ByRelation`): then a server stores
all nodes of the types that its relations touch, and those relations alone; or, of a root
relation that is too large for a server, some of the edges, and what their sources read. Relations
whose edges are predicted are everywhere besides.
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
"""in a server's folder: the part of a root relation's edges that it aggregates for the roots"""
DESCRIPTION_FILE: Final = "partition.json"
MapName = Literal["original_ids", "global_ids"]


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


class Columns(NamedTuple):
    """A range of columns of features."""

    first: int
    stop: int

    @property
    def width(self) -> int:
        """How many there are."""
        return self.stop - self.first


def divide_columns(dim: int, servers: int) -> list[Columns]:
    """The columns of each server, where features are divided by dimension."""
    bounds = [dim * server // servers for server in range(servers + 1)]
    return [Columns(first, stop) for first, stop in pairwise(bounds)]


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


class Layout(ABC):
    """Where a partitioned graph's topology and rows lie.

    Attributes
    ----------
    name: in partition.json.
    draws_alone: whether a rank draws all that its engine reads without asking other servers.
    reads_remote_rows: whether ranks may read rows of other servers' nodes.
    is_renumbered: whether global ids are other ones than the original.
    holdings: by server, where whole relations are divided; empty where nodes are.
    relations: those that any server stores, in canonical order.
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
        """once they were opened"""

    @abstractmethod
    def explain(self, where: str) -> str:
        """What engines that cannot train this are told, of a graph that is called ``where``."""

    @abstractmethod
    def topology(self, relation: Relation, server: int | None) -> Topology:
        """See :meth:`hopper.partition.PartitionedGraph.topology`."""

    @abstractmethod
    def stored_topologies(
        self, servers: Sequence[int]
    ) -> Iterator[tuple[Topology, Relation, Path]]:
        """Every topology that lies in the folders of some servers, or for all of them, and the
        folder."""

    def stored(self, node_type: str, server: int) -> StoredRows:
        """The nodes whose rows a server stores; or edges, of a relation as ``src/rel/dst``."""
        return StoredRows(*self._book.range(node_type, server))

    def has_whole_rows(self, table: str) -> bool:
        """Whether a server that stores features of a node, or of an edge of a relation as
        ``src/rel/dst``, stores all of them."""
        return True

    def columns(self, node_type: str, server: int) -> Columns:
        """The columns of a type's features that a server stores."""
        return Columns(0, self._schema.table(node_type).feature_dim or 0)

    def map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        """[count] int64: one of a node type's two maps."""
        if (node_type, name) not in self._maps:
            count = self._schema.node_types[node_type].count
            file = map_file(self.path, node_type, name)
            found = open_array(file, f"{name} of {node_type}", np.int64, (count,))
            self._maps[node_type, name] = found
        return self._maps[node_type, name]

    def _counts(self, relation: Relation) -> tuple[int, int]:
        """How many nodes there are of the types of a relation's sources and destinations."""
        kinds = self._schema.node_types
        return kinds[relation.src].count, kinds[relation.dst].count

    def _open(
        self,
        folder: Path,
        relation: Relation,
        edges: int | None = None,
        degrees: Path | None = None,
    ) -> Topology:
        """A relation's topology in a folder, with what draws by weight and in time read; parameters
        and errors as of :func:`hopper.graph.directory.open_topology`."""
        return open_topology(
            *(folder, relation, edges, *self._counts(relation), degrees),
            weighted=self._schema.relations[relation].weighted,
            timed=self._schema.is_timed(relation),
        )


class Replicated(Layout):
    """Nodes are divided; every server has all of the topology."""

    name = "replicated"

    def explain(self, where: str) -> str:
        """See :class:`Layout`."""
        method = self.description["method"]
        return (
            f"{where} was divided by node ({method}), not by relation (--method meta), and so were "
            "its features (not --features by-dimension)"
        )

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """See :class:`Layout`."""
        return self._open(self.path, relation, self._schema.relations[relation].count)

    def stored_topologies(
        self, servers: Sequence[int]
    ) -> Iterator[tuple[Topology, Relation, Path]]:
        """See :class:`Layout`."""
        for relation in self.relations:
            yield self.topology(relation, None), relation, self.path


class DividedTopology(Layout):
    """Nodes are divided, and a server has the in-edges of its own nodes, and of its halo: the nodes
    within some hops of them, of which there may be none.

    Attributes
    ----------
    halo: how many hops.
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
        """See :class:`Layout`."""
        near = f" and of those within {self.halo} hops of them" if self.halo else ""
        return (
            f"the topology of {where} is partitioned: a server has the in-edges of its own nodes"
            f"{near} alone"
        )

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """See :class:`Layout`."""
        if server is None:
            return self._all_in_edges(relation)
        found = self._open(server_folder(self.path, server), relation, degrees=self.path)
        if self._schema.relations[relation].feature_dim is None:
            return found
        file, rows = layout.topology_file(self.path, relation, "indptr"), found.indptr.shape
        return replace(found, starts=open_array(file, f"indptr of {relation}", np.int64, rows))

    def stored_topologies(
        self, servers: Sequence[int]
    ) -> Iterator[tuple[Topology, Relation, Path]]:
        """See :class:`Layout`."""
        for relation in self.relations:
            for server in servers:
                yield self.topology(relation, server), relation, server_folder(self.path, server)

    def _all_in_edges(self, relation: Relation) -> Topology:
        """What all servers have of their own nodes, put together in memory."""
        parts = [self.topology(relation, server) for server in range(self._book.servers)]
        ranges = [self._book.range(relation.dst, server) for server in range(len(parts))]
        # Servers' nodes follow each other.
        own = [
            slice(*part.indptr[[first, stop]].tolist())
            for part, (first, stop) in zip(parts, ranges, strict=True)
        ]

        def by_edge(arrays: list[NDArray[Any]]) -> NDArray[Any]:
            return np.concatenate([each[edges] for each, edges in zip(arrays, own, strict=True)])

        drawn_from: dict[str, Any] = {
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
            **drawn_from,
        )


class ByDimension(Replicated):
    """Every server has all nodes, and of their features a range of columns (P3, section 3.1); all
    of the topology and of the labels too."""

    name = "by_dimension"

    def explain(self, where: str) -> str:
        """See :class:`Layout`."""
        return f"the features of {where} are divided by dimension, so no server has a whole row"

    def stored(self, node_type: str, server: int) -> StoredRows:
        """See :class:`Layout`; edges and their features lie with their destinations."""
        if node_type not in self._schema.node_types:
            return super().stored(node_type, server)
        return StoredRows(0, self._book.total(node_type))

    def has_whole_rows(self, table: str) -> bool:
        """See :class:`Layout`."""
        return self._book.servers == 1 or table not in self._schema.node_types

    def columns(self, node_type: str, server: int) -> Columns:
        """See :class:`Layout`."""
        if node_type not in self._schema.node_types:
            return super().columns(node_type, server)
        dim = self._schema.node_types[node_type].feature_dim or 0
        return divide_columns(dim, self._book.servers)[server]


class ByRelation(Layout):
    """Whole relations are divided (Heta, section 5), or parts of root relations."""

    name = "by_relation"
    reads_remote_rows = False
    is_renumbered = False

    def __init__(
        self, path: Path, schema: GraphSchema, book: PartitionBook, description: dict[str, Any]
    ) -> None:
        super().__init__(path, schema, book, description)
        self.holdings = _read_holdings(schema, description, str(path / DESCRIPTION_FILE))
        self.relations = [
            each
            for each in schema.ordered_relations()
            if any(each in held.relations for held in self.holdings)
        ]
        self._held_ids: dict[tuple[str, int], NDArray[np.int64]] = {}

    def explain(self, where: str) -> str:
        """See :class:`Layout`."""
        return f"{where} is divided by relation, so no server has a whole neighbourhood"

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """See :class:`Layout`; of relations whose edges are predicted every server has a copy."""
        edges = self._schema.relations[relation].count
        if server is None and relation in self._schema.target_relations:
            return self._open(self.path, relation, edges)
        holders = self._holders(relation, server)
        whole = [each for each in holders if self.holdings[each].part.parts == 1]
        if server is None and not whole:
            return self._all_parts(relation, holders)
        folder = server_folder(self.path, (whole or holders)[0])
        return self._open(folder, relation, edges if whole else None)

    def root_topology(self, relation: Relation, server: int) -> Topology:
        """See :meth:`hopper.partition.PartitionedGraph.root_topology`."""
        if self.holdings[server].part.parts == 1:
            return self.topology(relation, server)
        folder = server_folder(self.path, server) / ROOTS_FOLDER
        some = open_topology(folder, relation, None, *self._counts(relation))
        file = layout.topology_file(folder, relation, "positions")
        what = f"positions of {relation}"
        return replace(some, positions=open_array(file, what, np.int64, some.indices.shape))

    def root_lists(self, relation: Relation, server: int) -> Topology:
        """See :meth:`hopper.partition.PartitionedGraph.root_lists`."""
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
        """See :class:`Layout`."""
        for relation in self._schema.target_relations:
            yield self.topology(relation, None), relation, self.path
        for server in servers:
            holding, folder = self.holdings[server], server_folder(self.path, server)
            for relation in holding.relations:
                yield self.topology(relation, server), relation, folder
            for relation in holding.roots if holding.part.parts > 1 else ():
                yield self.root_topology(relation, server), relation, folder / ROOTS_FOLDER

    def stored(self, node_type: str, server: int) -> StoredRows:
        """See :class:`Layout`."""
        held, total = self.holdings[server], self._book.total(node_type)
        if node_type not in self._schema.node_types:
            # Of edges all are stored, or none: parts' features are read in another way.
            is_held = any(str(each) == node_type for each in held.relations)
            return StoredRows(0, total if is_held and held.part.parts == 1 else 0)
        if node_type not in held.node_types:
            return StoredRows(0, 0)
        if held.part.parts == 1:
            return StoredRows(0, total)
        if (node_type, server) not in self._held_ids:
            file = held_file(server_folder(self.path, server), node_type)
            what, shape = f"held ids of {node_type}", (held.held[node_type],)
            self._held_ids[node_type, server] = open_array(file, what, np.int64, shape)
        return StoredRows(0, total, self._held_ids[node_type, server])

    def map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        """See :class:`Layout`."""
        return _unchanged(self._schema.node_types[node_type].count)

    def _all_parts(self, relation: Relation, holders: Sequence[int]) -> Topology:
        """What servers have of a relation of which none has all, put together in memory: every edge
        that hops from a split's nodes read."""
        copies = [self.topology(relation, server) for server in holders]
        lists = list(copies)
        for server in holders:
            if relation in self.holdings[server].roots:
                copies.append(self.root_topology(relation, server))
                lists.append(self.root_lists(relation, server))
        rows, positions, places = [], [], []
        for copy, own in zip(copies, lists, strict=True):
            counts = np.diff(copy.indptr)
            rows.append(np.repeat(np.arange(counts.size), counts))
            whole = np.arange(copy.indices.size) - np.repeat(copy.indptr[:-1], counts)
            positions.append(whole if copy.positions is None else copy.positions)
            places.append(own.indptr[rows[-1]] + positions[-1])
        row, position = np.concatenate(rows), np.concatenate(positions)
        order = np.lexsort((position, row))
        row, position = row[order], position[order]
        # An edge that several copies have counts once.
        first = np.ones(order.size, np.bool_)
        first[1:] = (row[1:] != row[:-1]) | (position[1:] != position[:-1])
        edges = order[first]
        counts = np.bincount(row[first], minlength=copies[0].in_degrees.size)
        # A node's list is whole wherever it is, so its places are the same.
        arrays: dict[str, Any] = {}
        for name in layout.draw_arrays(self._schema, relation):
            found = [getattr(own, name)[at] for own, at in zip(lists, places, strict=True)]
            arrays[name] = np.concatenate(found)[edges]
        return Topology(
            indptr=np.concatenate(([0], np.cumsum(counts))),
            indices=np.concatenate([copy.indices for copy in copies])[edges],
            edge_ids=np.concatenate([copy.edge_ids for copy in copies])[edges],
            in_degrees=copies[0].in_degrees,
            out_degrees=copies[0].out_degrees,
            **arrays,
        )

    def _holders(self, relation: Relation, server: int | None) -> list[int]:
        """The servers whose copies of a relation may be read."""
        servers = range(self._book.servers) if server is None else [server]
        found = [each for each in servers if relation in self.holdings[each].relations]
        if not found:
            who = "no server" if server is None else f"not server {server}, which"
            raise GraphError(
                f"{self.path}: relation {relation}: {who} stores it: the graph was divided for "
                f"{self.description['meta']['layers']} hops from "
                f"{', '.join(map(repr, self._schema.root_types))}"
            )
        return found


LAYOUTS: Final[dict[str, type[Layout]]] = {
    each.name: each for each in (Replicated, DividedTopology, ByDimension, ByRelation)
}
"""by their names in partition.json"""


@cache
def _unchanged(count: int) -> NDArray[np.int64]:
    """[count] int64: the maps where nodes were not numbered anew."""
    ids = np.arange(count, dtype=np.int64)
    ids.setflags(write=False)
    return ids


def _read_holdings(
    schema: GraphSchema, description: dict[str, Any], where: str
) -> Sequence[Holding]:
    """What every server stores, as partition.json tells."""
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
        roots = meta["target"], *meta.get("others", ())
        fits = roots == schema.root_types and len(holdings) == description["servers"]
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


def map_file(path: Path, node_type: str, name: MapName) -> Path:
    """The file of one of a node type's two maps."""
    return path / "maps" / node_type / f"{name}.npy"


def ranks_file(path: Path, node_type: str) -> Path:
    """The file of a type's ranks, among those of a node's server, where they follow locality."""
    return path / "ranks" / f"{node_type}.npy"
