"""One server's rows on disk: ``shard.json`` and the memory-mapped tables that it names.

A table holds the features or the labels of one node type, or the features of one relation's edges.
Their global ids are [first_id, first_id + count). Tables are never loaded whole; the page cache
decides which parts stay in memory.
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
"""the errors that numpy raises for a file that is no .npy file or has a damaged header"""
SCHEMA_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+/[A-Za-z0-9_.+-]+)?")
FEATURES: Final = "features"
_DIVISION: Final = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    """The name, range and format of a table's rows.

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
    """A table of rows that are found by global id.

    Attributes
    ----------
    spec: name, range and format of the rows.
    name: the table's name in errors.
    row_bytes: size of a row.
    scratch_bytes: memory that reading a row needs besides the row itself.
    """

    scratch_bytes = 0

    def __init__(self, spec: TableDescription, server: int) -> None:
        self.spec = spec
        self.row_bytes = spec.dim * little_endian(spec.dtype).itemsize
        self.name = f"{spec.kind}/{spec.type} of server {server}"

    def expect(self, dtype: str, dim: int) -> None:
        """Check that rows have ``dim`` elements of ``dtype``; raise BadRequest if not."""
        if dtype != self.spec.dtype:
            raise BadRequest(f"dtype: {self.name} is {self.spec.dtype}, not {dtype!r}")
        if dim != self.spec.dim:
            raise BadRequest(f"dim: rows of {self.name} have {self.spec.dim} elements, not {dim}")

    def local_rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert [n] int64 global ids to rows of this table.

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
    """A table whose rows are read from a memory-mapped file.

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
            # Imported here only, since importing compiled kernels dominates a server's start.
            from cache_server.read_ahead import read_ahead

            self._read_ahead = read_ahead

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Copy rows from the map into ``out``; see :meth:`Table.gather`."""
        if self._read_ahead is not None:
            self._read_ahead(self._bytes, rows)
        # With mode="raise" numpy would gather into a temporary buffer first.
        np.take(self._bytes, rows, axis=0, out=out, mode="clip")


class SourceTable(Table):
    """A table whose features are read by a user's class.

    Parameters
    ----------
    original_ids: [count] int64, the original id of every row.
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
        """Read rows from the source into ``out``; raise BadRequest if the source fails."""
        try:
            features = self._source.read(self._original_ids[rows])
        except SourceError as error:
            raise BadRequest(str(error)) from error
        dtype = little_endian(self.spec.dtype)
        out[:] = features.astype(dtype, copy=False).view(np.uint8).reshape(out.shape)


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
        sources: by node type, the class that provides its features instead of a table.

        Raises
        ------
        ManifestError: the manifest or a table is missing or malformed.
        SourceError: a source cannot be made, or its rows are not as it declares.
        """
        path = Path(directory) / MANIFEST
        server, servers, division, specs = _read_manifest(path)
        tables: dict[tuple[str, str], Table] = {
            (spec.kind, spec.type): MappedTable(spec, _map_table(path.parent, spec), server)
            for spec in specs
            if not (spec.kind == FEATURES and spec.type in sources)
        }
        for node_type, request in sources.items():
            table = _open_source(path.parent.parent, node_type, server, request)
            tables[FEATURES, node_type] = table
        in_edges = _open_in_edges(path.parent.parent, server)
        return cls(server, servers, tables, division, in_edges)

    def edges_into(self, relation: str) -> InEdges:
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
        types = sorted(t for k, t in self.tables if k == kind)
        raise BadRequest(
            f"type: server {self.server} has no {kind} of type {type!r}; it has {', '.join(types)}"
        )


def _open_in_edges(partitioned: Path, server: int) -> Mapping[str, InEdges]:
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
    from cache_server.in_edges import open_in_edges

    return open_in_edges(partitioned, server, offsets)


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
    ManifestError: the manifest is missing or malformed, or ``division`` is no fingerprint.
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
    """Map a table, [count, dim], and check that its file is as the manifest says."""
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
