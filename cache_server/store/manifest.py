"""The manifest of one server's tables, ``shard.json``, and the files that it names."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import xxhash
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from cache_server.errors import ManifestError
from cache_server.store.npy import map_array
from cache_server.wire import DTYPES

MANIFEST: Final = "shard.json"
_WORD: Final = r"[A-Za-z0-9_.+-]+"
_Count = Annotated[int, Field(ge=0)]
_Name = Annotated[str, Field(pattern=f"^{_WORD}(/{_WORD}/{_WORD})?$")]


def _check_inside(file: str) -> str:
    if not file or Path(file).is_absolute() or ".." in Path(file).parts:
        raise ValueError("expected a path inside the folder")
    return file


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """The name, range and format of a table's rows.

    ``kind`` is "features" or "labels" (any path-safe word), ``type`` a node type or a relation as
    ``src/rel/dst``, and ``first_id`` the global id of the first of ``count`` rows. One-dimensional
    arrays have ``dim`` 1. ``file`` is relative to the server's directory; "" = rows are no file's.
    """

    kind: _Name
    type: _Name
    first_id: _Count
    count: _Count
    dim: Annotated[int, Field(ge=1)]
    dtype: Annotated[str, Field(pattern=f"^({'|'.join(DTYPES)})$")]
    file: Annotated[str, AfterValidator(_check_inside), Field(validate_default=True)] = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of ``shard.json``; see :class:`cache_server.store.shard.Shard`."""

    schema: Literal[1] = 1
    server: _Count
    servers: Annotated[int, Field(ge=1)]
    division: Annotated[str, Field(pattern="^[0-9a-f]{0,64}$")] = ""
    tables: list[TableSpec]


_MANIFEST: Final = TypeAdapter(Manifest)


def write_manifest(
    directory: str | Path,
    server: int,
    servers: int,
    tables: Sequence[TableSpec],
    division: str = "",
) -> Path:
    """Write ``directory``/shard.json for existing table files, and return its path."""
    path, specs = Path(directory) / MANIFEST, list(tables)
    content = Manifest(server=server, servers=servers, division=division, tables=specs)
    text = json.dumps(asdict(content), indent=2) + "\n"
    for spec in _parse_manifest(path, text).tables:
        map_table(path.parent, spec)
    temporary = path.with_name(f".{MANIFEST}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
    return path


def set_division(directory: Path, division: str) -> None:
    """Write the fingerprint of the whole partitioned directory into ``directory``/shard.json."""
    manifest = read_manifest(directory)
    write_manifest(directory, manifest.server, manifest.servers, manifest.tables, division)


def file_checksum(file: Path) -> str:
    """Return the 128-bit XXH3 of a file in hexadecimal, which tells accidental changes alone:
    whoever can write a file can write its checksum too."""
    with file.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """Read ``directory``/shard.json; raise ManifestError if it is missing or malformed."""
    path = directory / MANIFEST
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ManifestError(f"{path}: expected a file, found something else")
        text = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    return _parse_manifest(path, text)


def map_table(directory: Path, spec: TableSpec) -> NDArray[Any]:
    """Map a table of ``directory``/shard.json to [count, dim]; raise ManifestError as a misfit."""
    shapes = [(spec.count, spec.dim), *([(spec.count,)] if spec.dim == 1 else [])]
    return map_array(directory / spec.file, spec.dtype, *shapes).reshape(spec.count, spec.dim)


def _parse_manifest(path: Path, text: str | bytes) -> Manifest:
    try:
        manifest = _MANIFEST.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
        place = "".join(keys).removeprefix(".")
        text = first["msg"].replace("Input should be", "expected").removeprefix("Value error, ")
        where = ": ".join(filter(None, (str(path), place)))
        raise ManifestError(f"{where}: {text}, found {first['input']!r:.100}") from error
    if manifest.server >= manifest.servers:
        raise ManifestError(
            f"{path}: server: expected less than {manifest.servers}, found {manifest.server}"
        )
    names = [f"{spec.kind}/{spec.type}" for spec in manifest.tables]
    for name in names:
        if names.count(name) > 1:
            raise ManifestError(f"{path}: tables: {name} is given twice")
    return manifest
