"""One server's rows: the tables that ``shard.json`` names, and the in-edges beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from cache_server.errors import BadRequest
from cache_server.store.graph_files import GraphFiles, read_partition
from cache_server.store.manifest import map_table, read_manifest
from cache_server.store.mapped_rows import feature_bytes
from cache_server.store.row_source import NO_SOURCES, SourceRequest
from cache_server.store.table import FEATURES, MappedTable, SourceTable, Table

if TYPE_CHECKING:
    from cache_server.shard_topology import ShardTopology


class Shard:
    """All tables of one server."""

    def __init__(
        self,
        server: int,
        servers: int,
        tables: dict[tuple[str, str], Table],
        division: str = "",
        in_edges: Mapping[str, ShardTopology] = MappingProxyType({}),
        graph: GraphFiles | None = None,
    ) -> None:
        self.server = server
        self.servers = servers
        self.tables = tables
        self.division = division
        self.in_edges = in_edges
        self.graph = graph or GraphFiles(Path(os.devnull), server)

    @classmethod
    def open(
        cls, directory: str | Path, sources: Mapping[str, SourceRequest] = NO_SOURCES
    ) -> Shard:
        """Open ``directory``/shard.json and map its tables."""
        directory = Path(directory)
        partitioned = directory.parent
        server, servers, division, specs = read_manifest(directory)
        together, partition = feature_bytes(directory), read_partition(partitioned)
        offsets = partition.get("offsets", {})
        tables: dict[tuple[str, str], Table] = {
            (spec.kind, spec.type): MappedTable(spec, map_table(directory, spec), server, together)
            for spec in specs
            if not (spec.kind == FEATURES and spec.type in sources)
        }
        for node_type, request in sources.items():
            table = SourceTable.open(partitioned, node_type, server, offsets, request)
            tables[FEATURES, node_type] = table
        in_edges: Mapping[str, ShardTopology] = {}
        if partition.get("topology") == "partitioned":
            # Importing the kernels takes a second, which servers without in-edges save.
            from cache_server.shard_topology import open_topology

            in_edges = open_topology(partitioned, server, offsets)
        graph = GraphFiles(partitioned, server)
        return cls(server, servers, tables, division, in_edges, graph)

    def edges_into(self, relation: str) -> ShardTopology:
        """Return a relation's in-edges; raise BadRequest naming those that exist if not there."""
        in_edges = self.in_edges.get(relation)
        if in_edges is None:
            raise BadRequest(
                f"relation: server {self.server} has no in-edges of {relation!r}; it has those of "
                f"{', '.join(self.in_edges) or 'nothing'}"
            )
        return in_edges

    def table(self, kind: str, type: str) -> Table:
        """Return the table of a kind and node type."""
        table = self.tables.get((kind, type))
        if table is not None:
            return table
        names = ", ".join(sorted("/".join(name) for name in self.tables)) or "nothing"
        raise BadRequest(f"server {self.server} has no {kind}/{type!r:.100}; it has {names:.500}")
