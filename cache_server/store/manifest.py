"""The manifest of one server's tables, ``shard.json``, and the files that it names."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
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

_Rule = tuple[Callable[[Any], object], str]
"""tells whether a field's value is right, and what was expected"""


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


def _parse_manifest(path: Path, content: Any) -> Manifest:
    _check(f"{path}", ": ", content, _MANIFEST_RULES)
    server, servers = content["server"], content["servers"]
    if server >= servers:
        raise ManifestError(f"{path}: server: expected less than {servers}, found {server}")
    specs = []
    for index, entry in enumerate(content["tables"]):
        _check(f"{path}: tables[{index}]", ".", entry, _TABLE_RULES)
        specs.append(TableSpec(**{key: entry[key] for key in _TABLE_RULES}))
        if [(spec.kind, spec.type) for spec in specs].count((entry["kind"], entry["type"])) > 1:
            name = f"{entry['kind']}/{entry['type']}"
            raise ManifestError(f"{path}: tables: {name} is given twice")
    return Manifest(server, servers, content.get("division", ""), specs)


def _check(where: str, dot: str, fields: Any, rules: Mapping[str, _Rule]) -> None:
    if not isinstance(fields, dict):
        raise ManifestError(f"{where}: expected an object, found {type(fields).__name__}")
    for key, (is_right, expected) in rules.items():
        value = fields.get(key, "" if key == "division" else None)
        if not is_right(value):
            raise ManifestError(f"{where}{dot}{key}: expected {expected}, found {value!r:.100}")


def _integer(least: int) -> _Rule:
    return lambda value: type(value) is int and value >= least, f"an integer >= {least}"


def _text(is_right: Callable[[str], object], expected: str) -> _Rule:
    return lambda value: isinstance(value, str) and is_right(value), expected


def _is_inside(file: str) -> bool:
    return bool(file) and not Path(file).is_absolute() and ".." not in Path(file).parts


_MANIFEST_RULES: Final[Mapping[str, _Rule]] = {
    "schema": (lambda version: version == SCHEMA_VERSION, str(SCHEMA_VERSION)),
    "servers": _integer(1),
    "server": _integer(0),
    "division": _text(_DIVISION.fullmatch, "up to 64 hexadecimal digits"),
    "tables": (lambda entries: isinstance(entries, list), "a list"),
}
_NAME_RULE: Final = _text(_NAME.fullmatch, "a name of [A-Za-z0-9_.+-], or src/rel/dst of these")
_TABLE_RULES: Final[Mapping[str, _Rule]] = {
    "kind": _NAME_RULE,
    "type": _NAME_RULE,
    "first_id": _integer(0),
    "count": _integer(0),
    "dim": _integer(1),
    "dtype": _text(DTYPES.__contains__, f"one of {', '.join(DTYPES)}"),
    "file": _text(_is_inside, "a path inside"),
}
