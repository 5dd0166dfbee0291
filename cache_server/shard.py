"""One server's rows: the tables that ``shard.json`` names, and the in-edges beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from cache_server.errors import BadRequest, ManifestError
from cache_server.manifest import map_table, read_manifest
from cache_server.mapped_tables import feature_bytes
from cache_server.row_source import NO_SOURCES, SourceRequest, open_source, read_nodes
from cache_server.table import FEATURES, MappedTable, SourceTable, Table, TableDescription

if TYPE_CHECKING:
    from cache_server.shard_topology import ShardTopology


class Shard:
    """All tables of one server.

    Attributes
    ----------
    server, servers: index of this server, and the number of servers.
    tables: by (kind, type).
    division: fingerprint of the partitioned directory that this is a part of; "" = none.
    in_edges: in-edges of the server's nodes by relation (src/rel/dst), if topology is partitioned.
    """

    def __init__(
        self,
        server: int,
        servers: int,
        tables: dict[tuple[str, str], Table],
        division: str = "",
        in_edges: Mapping[str, ShardTopology] = MappingProxyType({}),
    ) -> None:
        self.server = server
        self.servers = servers
        self.tables = tables
        self.division = division
        self.in_edges = in_edges

    @classmethod
    def open(
        cls, directory: str | Path, sources: Mapping[str, SourceRequest] = NO_SOURCES
    ) -> Shard:
        """Open ``directory``/shard.json and map its tables.

        Parameters
        ----------
        sources: by node type, the class that provides its features instead of a table.

        Raises
        ------
        ManifestError: the manifest or a table is missing or malformed.
        SourceError: a source cannot be made, or its rows are not as it declares.
        """
        directory = Path(directory)
        partitioned = directory.parent
        server, servers, division, specs = read_manifest(directory)
        together = feature_bytes(directory)
        tables: dict[tuple[str, str], Table] = {
            (spec.kind, spec.type): MappedTable(spec, map_table(directory, spec), server, together)
            for spec in specs
            if not (spec.kind == FEATURES and spec.type in sources)
        }
        for node_type, request in sources.items():
            tables[FEATURES, node_type] = _open_source(partitioned, node_type, server, request)
        in_edges = _open_in_edges(partitioned, server)
        return cls(server, servers, tables, division, in_edges)

    def edges_into(self, relation: str) -> ShardTopology:
        """Return the in-edges of a relation.

        Raises
        ------
        BadRequest: there are none; names the relations that exist.
        """
        in_edges = self.in_edges.get(relation)
        if in_edges is None:
            raise BadRequest(
                f"relation: server {self.server} has no in-edges of {relation!r}; it has those of "
                f"{', '.join(self.in_edges) or 'nothing'}"
            )
        return in_edges

    def table(self, kind: str, type: str) -> Table:
        """Return the table of a kind and node type.

        Raises
        ------
        BadRequest: there is none; names the tables that exist.
        """
        table = self.tables.get((kind, type))
        if table is not None:
            return table
        kinds = sorted({k for k, _ in self.tables})
        if kind not in kinds:
            raise BadRequest(
                f"kind: server {self.server} has no {kind!r}; "
                f"it has {', '.join(kinds) or 'nothing'}"
            )
        types = sorted(node_type for k, node_type in self.tables if k == kind)
        raise BadRequest(
            f"type: server {self.server} has no {kind} of type {type!r}; it has {', '.join(types)}"
        )


def _open_in_edges(partitioned: Path, server: int) -> Mapping[str, ShardTopology]:
    """Open the in-edges of a server's nodes by relation; empty unless topology is partitioned."""
    file = partitioned / "partition.json"
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
    nodes = read_nodes(partitioned, node_type, server)
    source = open_source(request, node_type, server, nodes.original_ids)
    original_ids = nodes.original_ids[nodes.first : nodes.stop]
    source.check(np.asarray(original_ids))
    spec = TableDescription(
        kind=FEATURES,
        type=node_type,
        first_id=nodes.first,
        count=original_ids.size,
        dim=source.dim,
        dtype=source.dtype.name,
    )
    return SourceTable(spec, source, original_ids, server)
