"""What is known of the whole graph: its descriptions, and arrays of ids that trainers need.

A process without the partitioned directory reads them from a feature server. Formats are those of
docs/reference/partition-directory.md.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from cache_server.errors import BadRequest, ManifestError
from cache_server.store.npy import map_npy
from cache_server.store.sharded_array import map_original_ids
from cache_server.store.table import IdTable, Table

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
        self._tables: dict[tuple[str, str], Table] = {}

    def read_text(self, name: str) -> str:
        """Return ``graph.json`` or ``partition.json``; raise BadRequest if there is none."""
        try:
            return (self._partitioned / name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadRequest(f"server {self._server} has no readable {name}") from error

    def description_bytes(self) -> int:
        """Return the size of both descriptions; 0 where they cannot be read."""
        files = [self._partitioned / name for name in (GRAPH_FILE, PARTITION_FILE)]
        return sum(file.stat().st_size for file in files if file.is_file())

    def tables(self) -> list[Table]:
        """Map every array of ids that this server has."""
        return [self.table(kind, name) for kind, name in self._files]

    def table(self, kind: str, name: str) -> Table:
        """Map an array of ids as a table of one column."""
        table = self._tables.get((kind, name))
        if table is not None:
            return table
        if kind not in ID_KINDS:
            raise BadRequest(f"kind: expected one of {', '.join(ID_KINDS)}, found {kind!r:.100}")
        file = self._files.get((kind, name))
        if file is None:
            names = ", ".join(name for other, name in self._files if other == kind) or "none"
            raise BadRequest(
                f"type: server {self._server} has no {kind} of {name!r}; it has {names:.500}"
            )
        try:
            if kind == "original_ids" and file.stem != kind:
                offsets = read_partition(self._partitioned)["offsets"]
                ids = map_original_ids(self._partitioned, name, offsets[name])
            else:
                ids = map_npy(file, (np.int32, np.int64), None)
        except (ManifestError, KeyError) as error:
            raise BadRequest(f"{kind} of {name!r}: {error}") from error
        table = self._tables[kind, name] = IdTable(kind, name, ids, self._server)
        return table

    @cached_property
    def _files(self) -> dict[tuple[str, str], Path]:
        """The files of all arrays by kind and name."""
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
