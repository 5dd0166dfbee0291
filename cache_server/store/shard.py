"""One server's rows: the tables that ``shard.json`` names, and the in-edges beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from cache_server.errors import BadRequest, ManifestError
from cache_server.store.graph_files import PARTITION_FILE, GraphFiles
from cache_server.store.manifest import map_table, read_manifest
from cache_server.store.mapped_rows import feature_bytes
from cache_server.store.row_source import NO_SOURCES, SourceRequest, open_source, read_nodes
from cache_server.store.table import FEATURES, MappedTable, SourceTable, Table, TableDescription

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
        server, servers, division, specs = read_manifest(directory)
        together = feature_bytes(directory)
        tables: dict[tuple[str, str], Table] = {
            (spec.kind, spec.type): MappedTable(spec, map_table(directory, spec), server, together)
            for spec in specs
            if not (spec.kind == FEATURES and spec.type in sources)
        }
        for node_type, request in sources.items():
            tables[FEATURES, node_type] = _open_source(directory.parent, node_type, server, request)
        in_edges = _open_in_edges(directory.parent, server)
        graph = GraphFiles(directory.parent, server)
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


def _open_in_edges(partitioned: Path, server: int) -> Mapping[str, ShardTopology]:
    """Open the in-edges of a server's nodes by relation; empty unless topology is partitioned."""
    file = partitioned / PARTITION_FILE
    if not file.exists():
        return {}
    try:
        description = json.loads(file.read_bytes())
        if description["topology"] != "partitioned":
            return {}
        offsets = description["offsets"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{file}: cannot be read: {error!r}") from error
    # Importing the kernels takes a second, which servers without in-edges save.
    from cache_server.shard_topology import open_topology

    return open_topology(partitioned, server, offsets)


def _open_source(
    partitioned: Path, node_type: str, server: int, request: SourceRequest
) -> SourceTable:
    """Open a source as the feature table of a server's nodes."""
    first, stop, originals = read_nodes(partitioned, node_type, server)
    source = open_source(request, node_type, server, originals)
    original_ids = originals[first:stop]
    source.check(np.asarray(original_ids))
    spec = TableDescription(
        kind=FEATURES,
        type=node_type,
        first_id=first,
        count=original_ids.size,
        dim=source.dim,
        dtype=source.dtype.name,
    )
    return SourceTable(spec, source, original_ids, server)
