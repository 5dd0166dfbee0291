"""The manifest of one server's tables, ``shard.json``, and the files that it names."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from cache_server.errors import ManifestError
from cache_server.store.npy import map_npy
from cache_server.store.table import TableDescription
from cache_server.wire import DTYPES

MANIFEST: Final = "shard.json"
SCHEMA_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+/[A-Za-z0-9_.+-]+)?")
_DIVISION: Final = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True, kw_only=True)
class TableSpec(TableDescription):
    """A table as ``shard.json`` names it; ``file`` is relative to the shard's directory."""

    file: str


class Manifest(NamedTuple):
    """The content of ``shard.json``; see :class:`cache_server.store.shard.Shard`."""

    server: int
    servers: int
    division: str
    tables: list[TableSpec]


def write_manifest(
    directory: str | Path,
    server: int,
    servers: int,
    tables: Sequence[TableSpec],
    division: str = "",
) -> Path:
    """Write ``directory``/shard.json for existing table files, and return its path."""
    path = Path(directory) / MANIFEST
    content = {
        "schema": SCHEMA_VERSION,
        "server": server,
        "servers": servers,
        "division": division,
        "tables": [asdict(spec) for spec in tables],
    }
    for spec in _parse_manifest(path, content).tables:
        map_table(path.parent, spec)
    temporary = path.with_name(f".{MANIFEST}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)
    return path


def set_division(directory: Path, division: str) -> None:
    """Write the fingerprint of the whole partitioned directory into ``directory``/shard.json."""
    manifest = read_manifest(directory)
    write_manifest(directory, manifest.server, manifest.servers, manifest.tables, division)


def read_manifest(directory: Path) -> Manifest:
    """Read ``directory``/shard.json; raise ManifestError if it is missing or malformed."""
    path = directory / MANIFEST
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ManifestError(f"{path}: expected a file, found something else")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: is not JSON: {error}") from error
    return _parse_manifest(path, content)


def map_table(directory: Path, spec: TableSpec) -> NDArray[Any]:
    """Map a table of ``directory``/shard.json to [count, dim]; raise ManifestError as a misfit."""
    shapes = [(spec.count, spec.dim), *([(spec.count,)] if spec.dim == 1 else [])]
    return map_npy(directory / spec.file, spec.dtype, *shapes).reshape(spec.count, spec.dim)


class _Fields:
    """The fields of one JSON object of a manifest, checked as they are taken."""

    def __init__(self, where: str, value: object) -> None:
        self._where = where
        if not isinstance(value, dict):
            found = type(value).__name__
            raise ManifestError(f"{where.rstrip('.: ')}: expected an object, found {found}")
        self._fields = value

    def take(self, key: str, is_right: Callable[[Any], object], expected: str) -> Any:
        """Return a field's value; raise ManifestError if it is not right."""
        value = self._fields.get(key, "" if key == "division" else None)
        if not is_right(value):
            raise ManifestError(f"{self._where}{key}: expected {expected}, found {value!r:.100}")
        return value

    def integer(self, key: str, least: int) -> int:
        """Return a field that must be an integer of at least ``least``."""

        def is_right(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and value >= least

        return int(self.take(key, is_right, f"an integer >= {least}"))

    def text(self, key: str, is_right: Callable[[str], object], expected: str) -> str:
        """Return a field that must be a text, and right."""
        return str(self.take(key, lambda v: isinstance(v, str) and is_right(v), expected))


def _parse_manifest(path: Path, content: object) -> Manifest:
    fields = _Fields(f"{path}: ", content)
    fields.take("schema", lambda version: version == SCHEMA_VERSION, str(SCHEMA_VERSION))
    servers, server = fields.integer("servers", 1), fields.integer("server", 0)
    fields.take("server", lambda server: server < servers, f"less than {servers}")
    division = fields.text("division", _DIVISION.fullmatch, "up to 64 hexadecimal digits")
    entries = fields.take("tables", lambda entries: isinstance(entries, list), "a list")
    specs = [_parse_table(f"{path}: tables[{i}]", entry) for i, entry in enumerate(entries)]
    names = [(spec.kind, spec.type) for spec in specs]
    for kind, type in names:
        if names.count((kind, type)) > 1:
            raise ManifestError(f"{path}: tables: {kind}/{type} is given twice")
    return Manifest(server, servers, division, specs)


def _parse_table(where: str, entry: object) -> TableSpec:
    fields = _Fields(f"{where}.", entry)
    name = "a name of [A-Za-z0-9_.+-], or src/rel/dst of these"
    return TableSpec(
        kind=fields.text("kind", _NAME.fullmatch, name),
        type=fields.text("type", _NAME.fullmatch, name),
        first_id=fields.integer("first_id", 0),
        count=fields.integer("count", 0),
        dim=fields.integer("dim", 1),
        dtype=fields.text("dtype", DTYPES.__contains__, f"one of {', '.join(DTYPES)}"),
        file=fields.text("file", _is_inside, "a path inside"),
    )


def _is_inside(file: str) -> bool:
    return bool(file) and not Path(file).is_absolute() and ".." not in Path(file).parts
