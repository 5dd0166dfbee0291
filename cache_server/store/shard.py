"""What one server has: the tables that ``shard.json`` names, the in-edges beside them, and what it
can tell of the whole graph.

A process without the partitioned directory reads descriptions and arrays of ids from a feature
server. Formats are those of docs/reference/partition-directory.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cache_server.errors import BadRequest, ManifestError
from cache_server.store.manifest import map_table, read_manifest
from cache_server.store.mapped_rows import feature_bytes
from cache_server.store.npy import ID_DTYPES, map_array, map_original_ids
from cache_server.store.row_source import NO_SOURCES, SourceRequest
from cache_server.store.table import FEATURES, Table, table_of_file, table_of_ids, table_of_source

if TYPE_CHECKING:
    from cache_server.store.topology import ShardTopology

GRAPH_FILE: Final = "graph.json"
PARTITION_FILE: Final = "partition.json"
ID_KINDS: Final = ("splits", "original_ids", "global_ids", "edge_ids")
"""arrays of int64: a split's ids; a node type's maps, by global and by original id; the edge ids
of a relation's CSC, whose edges the server stores"""


def read_partition(partitioned: Path) -> dict[str, Any]:
    """Read ``partition.json``; {} if there is none."""
    file = partitioned / PARTITION_FILE
    try:
        content = json.loads(file.read_bytes())
        return {"topology": content["topology"], "offsets": content.get("offsets", {})}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{file}: cannot be read: {error!r}") from error


class GraphFiles:
    """The descriptions and arrays of ids that one server can tell of its partitioned directory."""

    def __init__(self, partitioned: Path, server: int) -> None:
        self._partitioned, self._server = partitioned, server
        self._map_table = cache(self._map)

    def read_text(self, name: str) -> str:
        """Return ``graph.json`` or ``partition.json``; raise BadRequest if there is none."""
        try:
            return (self._partitioned / name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadRequest(f"server {self._server} has no readable {name}") from error

    def tables(self) -> list[Table]:
        """Map every array of ids that this server has."""
        return [self.table(kind, name) for kind, name in self._files]

    def table(self, kind: str, name: str) -> Table:
        """Map an array of ids as a table of one column."""
        if kind not in ID_KINDS:
            raise BadRequest(f"kind: expected one of {', '.join(ID_KINDS)}, found {kind!r:.100}")
        if (kind, name) not in self._files:
            names = ", ".join(name for other, name in self._files if other == kind) or "none"
            raise BadRequest(
                f"type: server {self._server} has no {kind} of {name!r}; it has {names:.500}"
            )
        return self._map_table(kind, name)

    def _map(self, kind: str, name: str) -> Table:
        file = self._files[kind, name]
        try:
            if kind == "original_ids" and file.stem != kind:
                offsets = read_partition(self._partitioned)["offsets"]
                ids = map_original_ids(self._partitioned, name, offsets[name])
            else:
                ids = map_array(file, ID_DTYPES, None)
        except (ManifestError, KeyError) as error:
            raise BadRequest(f"{kind} of {name!r}: {error}") from error
        return table_of_ids(kind, name, ids, self._server)

    @cached_property
    def _files(self) -> dict[tuple[str, str], Path]:
        root = self._partitioned
        files = {("splits", file.stem): file for file in root.glob("splits/*.npy")}
        # Where topology is divided, there is a file of original ids for each server.
        for file_name in ("original_ids-0", "original_ids", "global_ids"):
            kind = file_name.partition("-")[0]
            maps = root.glob(f"maps/*/{file_name}.npy")
            files |= {(kind, file.parent.name): file for file in maps}
        for folder in (root / "topology", root / f"server-{self._server}" / "topology"):
            files |= {
                ("edge_ids", "/".join(file.parent.relative_to(folder).parts)): file
                for file in folder.glob("*/*/*/edge_ids.npy")
            }
        return dict(sorted(files.items()))


@dataclass
class Shard:
    """All that one of ``servers`` stores: tables by kind and type, and in-edges by relation."""

    server: int
    servers: int
    tables: dict[tuple[str, str], Table]
    graph: GraphFiles
    division: str = ""
    in_edges: Mapping[str, ShardTopology] = field(default_factory=dict)

    @classmethod
    def open(
        cls, directory: str | Path, sources: Mapping[str, SourceRequest] = NO_SOURCES
    ) -> Shard:
        """Open ``directory``/shard.json and map its tables."""
        directory = Path(directory)
        manifest, partitioned = read_manifest(directory), directory.parent
        server, partition = manifest.server, read_partition(partitioned)
        together, offsets = feature_bytes(directory), partition.get("offsets", {})
        tables: dict[tuple[str, str], Table] = {
            (spec.kind, spec.type): table_of_file(
                spec, map_table(directory, spec), server, together
            )
            for spec in manifest.tables
            if not (spec.kind == FEATURES and spec.type in sources)
        }
        for node_type, request in sources.items():
            table = table_of_source(partitioned, node_type, server, offsets, request)
            tables[FEATURES, node_type] = table
        in_edges: Mapping[str, ShardTopology] = {}
        if partition.get("topology") == "partitioned":
            # Importing the kernels takes a second, which servers without in-edges save.
            from cache_server.store.topology import open_topology

            in_edges = open_topology(partitioned, server, offsets)
        graph = GraphFiles(partitioned, server)
        return cls(server, manifest.servers, tables, graph, manifest.division, in_edges)

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
