"""One server's rows on disk: ``shard.json`` and the memory-mapped tables that it names.

A table holds the rows of one kind ("features", "labels") of one node type, or of the edges of one
relation, whose global ids are [first_id, first_id + count). Tables are never read whole: the page
cache decides what stays.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tokenize
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest, ManifestError, SourceError
from cache_server.mapped_tables import read_rows_alone
from cache_server.row_source import (
    NO_SOURCES,
    CheckedSource,
    SourceRequest,
    open_source,
    read_nodes,
)
from cache_server.wire import DTYPES, little_endian

if TYPE_CHECKING:
    from cache_server.in_edges import InEdges

MANIFEST: Final = "shard.json"
NPY_ERRORS: Final = (
    ValueError,
    TypeError,
    EOFError,
    SyntaxError,
    MemoryError,
    RecursionError,
    OverflowError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""what numpy raises of a file that is no .npy file, or has an altered header"""
SCHEMA_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+/[A-Za-z0-9_.+-]+)?")
FEATURES: Final = "features"
_DIVISION: Final = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    """What a table holds.

    Attributes
    ----------
    kind, type: "features" or "labels" (any path-safe word), and the node type, or the relation as
        ``src/rel/dst``.
    first_id: global id of row 0.
    count, dim: rows, and elements in a row (1 for one-dimensional arrays).
    dtype: element type as numpy names it; one of :data:`cache_server.wire.DTYPES`.
    """

    kind: str
    type: str
    first_id: int
    count: int
    dim: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class TableSpec(TableDescription):
    """A table as ``shard.json`` names it; ``file`` is relative to the shard's directory."""

    file: str


class Table(ABC):
    """One table, whatever its rows come from.

    Attributes
    ----------
    spec: what it holds.
    name: for errors.
    row_bytes: size of a row.
    scratch_bytes: what reading a row takes beside it.
    """

    scratch_bytes = 0

    def __init__(self, spec: TableDescription, server: int) -> None:
        self.spec = spec
        self.row_bytes = spec.dim * little_endian(spec.dtype).itemsize
        self.name = f"{spec.kind}/{spec.type} of server {server}"

    def expect(self, dtype: str, dim: int) -> None:
        """Raise BadRequest unless rows are ``dim`` elements of ``dtype``."""
        if dtype != self.spec.dtype:
            raise BadRequest(f"dtype: {self.name} is {self.spec.dtype}, not {dtype!r}")
        if dim != self.spec.dim:
            raise BadRequest(f"dim: rows of {self.name} have {self.spec.dim} elements, not {dim}")

    def local_rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n] int64 global ids -> [n] rows of this table.

        Raises
        ------
        BadRequest: an id is outside the table's range; names the first such id and the range.
        """
        rows = ids - self.spec.first_id
        if rows.size and (rows.min() < 0 or rows.max() >= self.spec.count):
            bad = ids[(rows < 0) | (rows >= self.spec.count)][0]
            last = self.spec.first_id + self.spec.count
            raise BadRequest(
                f"ids: id {bad} is outside [{self.spec.first_id}, {last}), the range of {self.name}"
            )
        return rows

    @abstractmethod
    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Copy rows (checked by :meth:`local_rows`) into ``out`` [n, row_bytes]."""


class MappedTable(Table):
    """One memory-mapped table.

    Attributes
    ----------
    array: [count, dim], read-only, little-endian.
    """

    def __init__(self, spec: TableSpec, array: NDArray[Any], server: int) -> None:
        super().__init__(spec, server)
        self.array = array
        self._bytes = array.view(np.uint8).reshape(spec.count, self.row_bytes)
        self._read_ahead: Callable[[NDArray[Any], NDArray[np.int64]], None] | None = None
        if read_rows_alone(array):
            # Only here: compiled kernels take a server longer to import than all else.
            from cache_server.read_ahead import read_ahead

            self._read_ahead = read_ahead

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """See :class:`Table`."""
        if self._read_ahead is not None:
            self._read_ahead(self._bytes, rows)
        # With mode="raise" numpy would gather into a buffer of its own first.
        np.take(self._bytes, rows, axis=0, out=out, mode="clip")


class SourceTable(Table):
    """Features that a class of one's own reads.

    Parameters
    ----------
    original_ids: of the table's rows.
    """

    def __init__(
        self,
        spec: TableDescription,
        source: CheckedSource,
        original_ids: NDArray[np.int64],
        server: int,
    ) -> None:
        super().__init__(spec, server)
        self._source = source
        self._original_ids = original_ids

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """See :class:`Table`; BadRequest tells what the source failed with."""
        try:
            read = self._source.read(self._original_ids[rows])
        except SourceError as error:
            raise BadRequest(str(error)) from error
        wanted = little_endian(self.spec.dtype)
        out[:] = read.astype(wanted, copy=False).view(np.uint8).reshape(out.shape)


class Shard:
    """All tables of one server.

    Attributes
    ----------
    server, servers: index of this server, and how many there are.
    tables: by (kind, type).
    division: fingerprint of the partitioned directory that this is a part of; "" if none.
    in_edges: of its own nodes by relation (src/rel/dst), where topology is partitioned.
    """

    def __init__(
        self,
        server: int,
        servers: int,
        tables: dict[tuple[str, str], Table],
        division: str = "",
        in_edges: Mapping[str, InEdges] = MappingProxyType({}),
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
        sources: by node type, where its features come from instead of a table.

        Raises
        ------
        ManifestError: the manifest or a table is missing, or does not say or hold what it should.
        SourceError: a source cannot be had, or its rows are not what it says.
        """
        path = Path(directory) / MANIFEST
        server, servers, division, specs = _read_manifest(path)
        tables: dict[tuple[str, str], Table] = {
            (spec.kind, spec.type): MappedTable(spec, _map_table(path.parent, spec), server)
            for spec in specs
            if not (spec.kind == FEATURES and spec.type in sources)
        }
        for node_type, request in sources.items():
            own = _open_source(path.parent.parent, node_type, server, request)
            tables[FEATURES, node_type] = own
        in_edges = _open_in_edges(path.parent.parent, server)
        return cls(server, servers, tables, division, in_edges)

    def edges_into(self, relation: str) -> InEdges:
        """The in-edges of a relation; BadRequest naming what exists if there are none."""
        found = self.in_edges.get(relation)
        if found is None:
            raise BadRequest(
                f"relation: server {self.server} has no in-edges of {relation!r}; it has those of "
                f"{', '.join(self.in_edges) or 'nothing'}"
            )
        return found

    def table(self, kind: str, type: str) -> Table:
        """The table of a kind and node type; BadRequest naming what exists if there is none."""
        found = self.tables.get((kind, type))
        if found is not None:
            return found
        kinds = sorted({k for k, _ in self.tables})
        if kind not in kinds:
            raise BadRequest(
                f"kind: server {self.server} has no {kind!r}; "
                f"it has {', '.join(kinds) or 'nothing'}"
            )
        types = sorted(t for k, t in self.tables if k == kind)
        raise BadRequest(
            f"type: server {self.server} has no {kind} of type {type!r}; it has {', '.join(types)}"
        )


def _open_in_edges(partitioned: Path, server: int) -> Mapping[str, InEdges]:
    """What a server's neighbours are drawn from, where topology is partitioned."""
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
    # Kernels take a second to import, which servers of rows alone need not wait for.
    from cache_server.in_edges import open_in_edges

    return open_in_edges(partitioned, server, offsets)


def _open_source(
    partitioned: Path, node_type: str, server: int, request: SourceRequest
) -> SourceTable:
    """A table of the features that a source has of a server's nodes."""
    nodes = read_nodes(partitioned, node_type, server)
    source = open_source(request, node_type, server, nodes.original_ids)
    own = nodes.original_ids[nodes.first : nodes.stop]
    source.check(np.asarray(own))
    spec = TableDescription(
        kind=FEATURES,
        type=node_type,
        first_id=nodes.first,
        count=own.size,
        dim=source.dim,
        dtype=source.dtype.name,
    )
    return SourceTable(spec, source, own, server)


def write_manifest(
    directory: str | Path,
    server: int,
    servers: int,
    tables: Sequence[TableSpec],
    division: str = "",
) -> Path:
    """Write ``directory``/shard.json for table files that are already there; returns its path.

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
    _, _, _, specs = _parse_manifest(path, content)
    for spec in specs:
        _map_table(path.parent, spec)
    temporary = path.with_name(f".{MANIFEST}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)
    return path


def set_division(directory: Path, division: str) -> None:
    """Write the fingerprint of the whole partitioned directory into ``directory``/shard.json.

    Raises
    ------
    ManifestError: the manifest is missing or malformed, or that is no fingerprint.
    """
    server, servers, _, specs = _read_manifest(directory / MANIFEST)
    write_manifest(directory, server, servers, specs, division)


def _read_manifest(path: Path) -> tuple[int, int, str, list[TableSpec]]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ManifestError(f"{path}: expected a file, found something else")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: is not JSON: {error}") from error
    return _parse_manifest(path, content)


def _parse_manifest(path: Path, content: object) -> tuple[int, int, str, list[TableSpec]]:
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
    return server, servers, division, specs


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


def _map_table(directory: Path, spec: TableSpec) -> NDArray[Any]:
    """[count, dim] memory-mapped, after checking that the file is what the manifest says."""
    path = directory / spec.file
    try:
        # Opening a pipe would wait for whoever writes to it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ManifestError(f"{path}: expected a file, found something else")
        # An empty file part cannot be mapped.
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
