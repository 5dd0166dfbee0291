"""The manifest of one server's tables, ``shard.json``, and the files that it names."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import ManifestError
from cache_server.npy_errors import NPY_ERRORS
from cache_server.table import TableDescription
from cache_server.wire import DTYPES, little_endian

MANIFEST: Final = "shard.json"
SCHEMA_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+/[A-Za-z0-9_.+-]+)?")
_DIVISION: Final = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True, kw_only=True)
class TableSpec(TableDescription):
    """A table as ``shard.json`` names it; ``file`` is relative to the shard's directory."""

    file: str


class Manifest(NamedTuple):
    """The content of ``shard.json``; see :class:`cache_server.shard.Shard`."""

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
    """Write ``directory``/shard.json for existing table files, and return its path.

    Parameters
    ----------
    division: fingerprint of the whole partitioned directory, in hexadecimal.

    Raises
    ------
    ManifestError: an entry is malformed, given twice, or does not fit its file.
    """
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
    """Write the fingerprint of the whole partitioned directory into ``directory``/shard.json.

    Raises
    ------
    ManifestError: the manifest is missing or malformed, or ``division`` is no fingerprint.
    """
    manifest = read_manifest(directory)
    write_manifest(directory, manifest.server, manifest.servers, manifest.tables, division)


def read_manifest(directory: Path) -> Manifest:
    """Read ``directory``/shard.json.

    Raises
    ------
    ManifestError: the manifest is missing or malformed.
    """
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


def _parse_manifest(path: Path, content: object) -> Manifest:
    if not isinstance(content, dict):
        raise ManifestError(f"{path}: expected an object, found {type(content).__name__}")
    if content.get("schema") != SCHEMA_VERSION:
        raise ManifestError(
            f"{path}: schema: expected {SCHEMA_VERSION}, found {content.get('schema')!r}"
        )
    servers = _integer(path, content, "servers", 1)
    server = _integer(path, content, "server", 0)
    if server >= servers:
        raise ManifestError(f"{path}: server: expected less than {servers}, found {server}")
    division = content.get("division", "")
    if not isinstance(division, str) or not _DIVISION.fullmatch(division):
        raise ManifestError(
            f"{path}: division: expected up to 64 hexadecimal digits, found {division!r:.100}"
        )
    entries = content.get("tables")
    if not isinstance(entries, list):
        raise ManifestError(f"{path}: tables: expected a list, found {type(entries).__name__}")
    specs = [_parse_table(path, f"tables[{i}]", entry) for i, entry in enumerate(entries)]
    seen: set[tuple[str, str]] = set()
    for spec in specs:
        if (spec.kind, spec.type) in seen:
            raise ManifestError(f"{path}: tables: {spec.kind}/{spec.type} is given twice")
        seen.add((spec.kind, spec.type))
    return Manifest(server, servers, division, specs)


def _parse_table(path: Path, field: str, entry: object) -> TableSpec:
    if not isinstance(entry, dict):
        raise ManifestError(f"{path}: {field}: expected an object, found {type(entry).__name__}")
    for key in ("kind", "type"):
        value = entry.get(key)
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ManifestError(
                f"{path}: {field}.{key}: expected a name of [A-Za-z0-9_.+-], or src/rel/dst of "
                f"these, found {value!r}"
            )
    file = entry.get("file")
    if not isinstance(file, str) or Path(file).is_absolute() or ".." in Path(file).parts:
        raise ManifestError(f"{path}: {field}.file: expected a path inside, found {file!r}")
    if entry.get("dtype") not in DTYPES:
        raise ManifestError(
            f"{path}: {field}.dtype: expected one of {', '.join(DTYPES)}, "
            f"found {entry.get('dtype')!r}"
        )
    return TableSpec(
        kind=entry["kind"],
        type=entry["type"],
        file=file,
        first_id=_integer(path, entry, "first_id", 0, field),
        count=_integer(path, entry, "count", 0, field),
        dim=_integer(path, entry, "dim", 1, field),
        dtype=entry["dtype"],
    )


def _integer(path: Path, mapping: dict[str, Any], key: str, least: int, field: str = "") -> int:
    value = mapping.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        name = f"{field}.{key}" if field else key
        raise ManifestError(f"{path}: {name}: expected an integer >= {least}, found {value!r}")
    return value


def map_table(directory: Path, spec: TableSpec) -> NDArray[Any]:
    """Map a table of ``directory``/shard.json, to [count, dim].

    Raises
    ------
    ManifestError: the file is missing, or is not as the manifest says.
    """
    path = directory / spec.file
    try:
        # Opening a pipe would block until somebody writes to it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ManifestError(f"{path}: expected a file, found something else")
        # An empty array cannot be mapped.
        array = np.load(path, mmap_mode="r" if spec.count else None, allow_pickle=False)
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror or error}") from error
    except NPY_ERRORS as error:
        raise ManifestError(f"{path}: is not a complete .npy file: {_first_line(error)}") from error
    if not isinstance(array, np.ndarray) or array.dtype != little_endian(spec.dtype):
        raise ManifestError(
            f"{path}: dtype: expected {spec.dtype} (little-endian), "
            f"found {getattr(array, 'dtype', type(array).__name__)}"
        )
    shapes = [(spec.count, spec.dim)] + ([(spec.count,)] if spec.dim == 1 else [])
    if array.shape not in shapes:
        raise ManifestError(f"{path}: shape: expected {shapes[0]}, found {array.shape}")
    if not array.flags.c_contiguous:
        raise ManifestError(f"{path}: order: expected row-major, found Fortran order")
    return array.reshape(spec.count, spec.dim)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
