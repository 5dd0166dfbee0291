"""What is known of the whole graph: its descriptions, and arrays of ids that trainers need.

A process without the partitioned directory reads them from a feature server. Formats are those of
docs/reference/partition-directory.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from cache_server.errors import BadRequest, ManifestError
from cache_server.store.npy import map_npy
from cache_server.store.sharded_array import map_original_ids, shard_file
from cache_server.store.table import IdTable, Table, TableDescription

GRAPH_FILE: Final = "graph.json"
PARTITION_FILE: Final = "partition.json"
ID_KINDS: Final = ("splits", "original_ids", "global_ids", "edge_ids")
"""arrays of int64: a split's ids; a node type's maps, by global and by original id; the edge ids
of a relation's CSC, whose edges the server stores"""


def ids_file(root: Path, kind: str, name: str) -> Path:
    """Return the file of a split or of a node type's map in a partitioned directory."""
    return root / kind / f"{name}.npy" if kind == "splits" else root / "maps" / name / f"{kind}.npy"


class GraphFiles:
    """The descriptions and arrays of ids that one server can tell of its partitioned directory."""

    def __init__(self, partitioned: Path, server: int) -> None:
        self._partitioned, self._server = partitioned, server
        self._tables: dict[tuple[str, str], Table] = {}

    def read_text(self, name: str) -> str:
        """Return ``graph.json`` or ``partition.json``; raise BadRequest if there is none."""
        try:
            return (self._partitioned / name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadRequest(f"server {self._server} has no readable {name}") from error

    def arrays(self) -> Iterator[TableDescription]:
        """Describe every array of ids that this server has."""
        for kind in ID_KINDS:
            for name in sorted(self._files(kind)):
                yield self.table(kind, name).spec

    def table(self, kind: str, name: str) -> Table:
        """Map an array of ids as a table of one column."""
        opened = self._tables.get((kind, name))
        if opened is not None:
            return opened
        if kind not in ID_KINDS:
            raise BadRequest(f"kind: expected one of {', '.join(ID_KINDS)}, found {kind!r:.100}")
        files = self._files(kind)
        if name not in files:
            raise BadRequest(
                f"type: server {self._server} has no {kind} of {name!r}; it has "
                f"{', '.join(sorted(files)) or 'none'}"
            )
        try:
            if files[name] == ids_file(self._partitioned, kind, name) or kind == "edge_ids":
                ids = map_npy(files[name], (np.int32, np.int64), None)
            else:
                offsets = json.loads(self.read_text(PARTITION_FILE))["offsets"]
                ids = map_original_ids(self._partitioned, name, offsets[name])
        except (ManifestError, ValueError, KeyError) as error:
            raise BadRequest(str(error)) from error
        table = self._tables[kind, name] = IdTable(kind, name, ids, self._server)
        return table

    def _files(self, kind: str) -> dict[str, Path]:
        """Return the files of a kind of arrays, by the array's name."""
        if kind != "edge_ids":
            files = [*self._partitioned.glob(str(ids_file(Path(), kind, "*")))]
            if kind == "original_ids":
                # Where topology is divided, there is a file for each server.
                files += self._partitioned.glob(str(shard_file(ids_file(Path(), kind, "*"), 0)))
            return {file.stem if kind == "splits" else file.parent.name: file for file in files}
        return {
            "/".join(file.parent.relative_to(folder).parts): file
            for folder in (
                self._partitioned / "topology",
                self._partitioned / f"server-{self._server}" / "topology",
            )
            for file in folder.glob("*/*/*/edge_ids.npy")
        }
