"""The layout of graphs whose relations are divided (Heta, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.neighbor_lists import StoredIds
from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.partition.description import (
    DESCRIPTION_FILE,
    ROOTS_FOLDER,
    Description,
    MapName,
    server_folder,
    stored_ids_file,
)
from hopper.partition.layout import Layout, StoredTopologies
from hopper.partition.placement import PartitionBook


class ByRelation(Layout):
    """Whole relations are divided: a server stores its relations and all nodes of their types. Of a
    root relation that is too large for a server, it stores some of the edges, and the edges and
    rows that hops from their sources read. All servers have the target relations."""

    name = "by_relation"
    reads_remote_rows = False
    _EXPLANATION = "{where} is divided by relation, so no server has a whole neighbourhood"
    _identities: ClassVar[WeakValueDictionary[int, NDArray[np.int64]]] = WeakValueDictionary()
    """maps of ids that do not change, by length, shared as long as they are in use"""

    def __init__(
        self, path: Path, schema: GraphSchema, book: PartitionBook, description: Description
    ) -> None:
        super().__init__(path, schema, book, description)
        self._layers = description.meta.layers if description.meta else 0
        self.partitions = description.partitions(schema, str(path / DESCRIPTION_FILE))
        stored = {r for partition in self.partitions for r in partition.relations}
        self.relations = [r for r in schema.ordered_relations() if r in stored]
        self._stored_ids: dict[tuple[str, int], NDArray[np.int64]] = {}

    def topology(self, relation: Relation, server: int | None) -> Topology:
        """Map a copy of a relation's CSC; every server has a copy of target relations."""
        edges = self._schema.relations[relation].count
        if server is None and relation in self._schema.target_relations:
            return self._open(self.path, relation, edges)
        holders = self._find_holders(relation, server)
        whole = [holder for holder in holders if self.partitions[holder].is_whole]
        if server is None and not whole:
            return self._join_parts(relation, holders)
        folder = server_folder(self.path, (whole or holders)[0])
        return self._open(folder, relation, edges if whole else None)

    def root_topology(self, relation: Relation, server: int) -> Topology:
        """Map the in-edges of roots that a server stores of one of its root relations."""
        if self.partitions[server].is_whole:
            return self.topology(relation, server)
        folder = server_folder(self.path, server) / ROOTS_FOLDER
        return self._open(folder, relation, more=("positions",))

    def root_lists(self, relation: Relation, server: int) -> Topology:
        """Make whole lists of roots' in-edges, with gaps for edges of other servers' parts."""
        part = self.root_topology(relation, server)
        if part.positions is None:
            return part
        is_root = np.zeros(part.in_degrees.size, np.bool_)
        for name in self._schema.splits:
            is_root[GraphDirectory(self.path, self._schema).split(name)] = True
        indptr = np.concatenate(([0], np.cumsum(np.where(is_root, part.in_degrees, 0))))
        folder, arrays = server_folder(self.path, server) / ROOTS_FOLDER, dict[str, Any]()
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

    def stored_topologies(self, servers: Sequence[int]) -> StoredTopologies:
        """Iterate over the target relations, and the relations and parts of some servers."""
        for relation in self._schema.target_relations:
            yield self.topology(relation, None), relation, self.path
        for server in servers:
            partition, folder = self.partitions[server], server_folder(self.path, server)
            for relation in partition.relations:
                yield self.topology(relation, server), relation, folder
            for relation in () if partition.is_whole else partition.roots:
                yield self.root_topology(relation, server), relation, folder / ROOTS_FOLDER

    def stored(self, table: str, server: int) -> StoredIds:
        """Return the stored nodes or edges of a type or relation: all, those of a part, or none."""
        partition, total = self.partitions[server], self._book.total(table)
        if table not in self._schema.node_types:
            # A server stores all edges or none here; features of parts are read in another way.
            has_relation = any(str(relation) == table for relation in partition.relations)
            return StoredIds(0, total if has_relation and partition.is_whole else 0)
        if table not in partition.node_types or partition.is_whole:
            return StoredIds(0, total if table in partition.node_types else 0)
        if (table, server) not in self._stored_ids:
            file = stored_ids_file(server_folder(self.path, server), table)
            what, shape = f"ids of the stored rows of {table}", (partition.stored[table],)
            self._stored_ids[table, server] = open_array(file, what, np.int64, shape)
        return StoredIds(0, total, self._stored_ids[table, server])

    def map(self, node_type: str, name: MapName) -> NDArray[np.int64]:
        """Return [count] int64: 0, 1, 2, ..., because global ids are original ids."""
        count = self._schema.node_types[node_type].count
        ids = self._identities.get(count)
        if ids is None:
            ids = np.arange(count, dtype=np.int64)
            ids.setflags(write=False)
            self._identities[count] = ids
        return ids

    def _join_parts(self, relation: Relation, holders: Sequence[int]) -> Topology:
        """Join the parts of a relation that no server has whole, in memory: every edge that hops
        from the nodes of splits read."""
        # Edges that are stored, and the whole lists that they are in.
        pairs = [(part, part) for part in (self.topology(relation, s) for s in holders)]
        pairs += [
            (self.root_topology(relation, server), self.root_lists(relation, server))
            for server in holders
            if relation in self.partitions[server].roots
        ]
        degrees, places, list_indices = pairs[0][0].in_degrees, [], []
        bounds = np.concatenate(([0], np.cumsum(degrees)))
        for part, lists in pairs:
            counts = np.diff(part.indptr)
            rows = np.repeat(np.arange(counts.size), counts)
            ascending = np.arange(part.indices.size) - np.repeat(part.indptr[:-1], counts)
            positions = ascending if part.positions is None else part.positions
            places.append(bounds[rows] + positions)
            list_indices.append(lists.indptr[rows] + positions)
        # Several parts may have the same edge, which is taken once. A node's list is whole wherever
        # it is stored, so its edges have the same positions.
        place, edges = np.unique(np.concatenate(places), return_index=True)
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part, _ in pairs])[edges]
            for name in ("indices", "edge_ids")
        }
        for name in layout.draw_arrays(self._schema, relation):
            values = zip(pairs, list_indices, strict=True)
            parts = [getattr(lists, name)[indices] for (_, lists), indices in values]
            arrays[name] = np.concatenate(parts)[edges]
        indptr, out_degrees = np.searchsorted(place, bounds), pairs[0][0].out_degrees
        return Topology(indptr, in_degrees=degrees, out_degrees=out_degrees, **arrays)

    def _find_holders(self, relation: Relation, server: int | None) -> list[int]:
        """Find the servers that store a relation, among all or one."""
        servers = range(self._book.servers) if server is None else [server]
        holders = [number for number in servers if relation in self.partitions[number].relations]
        if not holders:
            who = "no server" if server is None else f"not server {server}, which"
            raise GraphError(
                f"{self.path}: relation {relation}: {who} stores it: the graph was divided for "
                f"{self._layers} hops from "
                f"{', '.join(map(repr, self._schema.root_types))}"
            )
        return holders
