"""Tables of rows that are found by global id.

A table holds the features or the labels of one node type, or the features of one relation's edges.
Their global ids are [first_id, first_id + count). Tables are never loaded whole; the page cache
decides which parts stay in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest, ManifestError, SourceError
from cache_server.feature_codec import find_codec
from cache_server.store.mapped_rows import read_rows_alone
from cache_server.store.row_source import CheckedSource, SourceRequest
from cache_server.store.sharded_array import map_original_ids
from cache_server.wire import little_endian

FEATURES: Final = "features"
"""the kind of tables with features"""


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    """The name, range and format of a table's rows.

    ``kind`` is "features" or "labels" (any path-safe word), ``type`` a node type or a relation as
    ``src/rel/dst``, ``first_id`` the global id of row 0, and ``dtype`` one of
    :data:`cache_server.wire.DTYPES`. One-dimensional arrays have ``dim`` 1.
    """

    kind: str
    type: str
    first_id: int
    count: int
    dim: int
    dtype: str


class Table(ABC):
    """A table of rows that are found by global id."""

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
        """Convert [n] int64 global ids to rows; raise BadRequest for one outside the range."""
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
    """A table whose rows are read from a memory-mapped file."""

    def __init__(
        self, spec: TableDescription, array: NDArray[Any], server: int, together: int = 0
    ) -> None:
        super().__init__(spec, server)
        self.array = array
        self._bytes = array.view(np.uint8).reshape(spec.count, self.row_bytes)
        self._read_ahead: Callable[[NDArray[Any], NDArray[np.int64]], None] | None = None
        if read_rows_alone(array, together):
            # Imported here only, since importing compiled kernels dominates a server's start.
            from cache_server.store.read_ahead import read_ahead

            self._read_ahead = read_ahead

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Copy rows from the map into ``out``."""
        if self._read_ahead is not None:
            self._read_ahead(self._bytes, rows)
        # With mode="raise" numpy would gather into a temporary buffer first.
        np.take(self._bytes, rows, axis=0, out=out, mode="clip")


class IdTable(Table):
    """An array of ids, which has four or eight bytes for each; they are sent with eight."""

    def __init__(self, kind: str, type: str, ids: NDArray[np.integer[Any]], server: int) -> None:
        spec = TableDescription(
            kind=kind, type=type, first_id=0, count=ids.size, dim=1, dtype="int64"
        )
        super().__init__(spec, server)
        self._ids = ids

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Write ids to ``out`` as int64."""
        out.view(little_endian("int64"))[:, 0] = self._ids[rows]


class SourceTable(Table):
    """A table whose features are read by a user's class, by [count] int64 original ids."""

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

    @classmethod
    def open(
        cls,
        partitioned: Path,
        node_type: str,
        server: int,
        offsets: Mapping[str, Sequence[int]],
        request: SourceRequest,
    ) -> SourceTable:
        """Make a source for a server's nodes of a partitioned directory, and try it."""
        try:
            first, stop = offsets[node_type][server : server + 2]
            ids = map_original_ids(partitioned, node_type, offsets[node_type])
        except (ValueError, KeyError, IndexError, TypeError, ManifestError) as error:
            raise SourceError(
                f"features of {node_type}: {partitioned} does not tell of such nodes "
                f"({type(error).__name__}: {error})"
            ) from error
        source = request.make(node_type, server, ids.size)
        source.check(ids[first:stop])
        spec = TableDescription(
            kind=FEATURES,
            type=node_type,
            first_id=first,
            count=stop - first,
            dim=source.dim,
            dtype=source.dtype.name,
        )
        return cls(spec, source, ids[first:stop], server)

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Read rows from the source into ``out``; raise BadRequest if the source fails."""
        try:
            features = self._source.read(self._original_ids[rows])
        except SourceError as error:
            raise BadRequest(str(error)) from error
        out.view(little_endian(self.spec.dtype))[:] = features


class RoundedTable(Table):
    """A float32 table whose rows are rounded to float16, bfloat16 or int8 as they are read."""

    def __init__(self, table: Table, form: str, server: int) -> None:
        super().__init__(table.spec, server)
        self._codec, self._table = find_codec(form), table
        if table.spec.dtype != "float32":
            raise BadRequest(
                f"form: rows of {table.name} are {table.spec.dtype}; only float32 is rounded, to "
                f"{form} as to any form"
            )
        self.row_bytes = self._codec.row_bytes(table.spec.dim)
        # The stored row, and intermediate results.
        self.scratch_bytes = 3 * table.row_bytes

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Write rounded rows to ``out``; raise BadRequest if the form cannot hold a number."""
        stored = np.empty((rows.size, self._table.row_bytes), np.uint8)
        self._table.gather(rows, stored)
        floats = stored.view(little_endian("float32"))
        rounded = self._codec.encode(floats)
        if self._codec.name == "float16":
            lost = np.isinf(rounded) & np.isfinite(floats)
            if lost.any():
                raise BadRequest(
                    f"form: rows of {self._table.name} have numbers beyond what float16 can hold, "
                    f"such as {floats[lost][0]:g}; expected bfloat16 or int8"
                )
        out[:] = rounded.view(np.uint8).reshape(out.shape)
