"""Tables of rows that are found by global id.

A table holds the features or the labels of one node type, or the features of one relation's edges.
Tables are never loaded whole; the page cache decides which parts stay in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest, ManifestError, SourceError
from cache_server.feature_codec import find_codec
from cache_server.store.manifest import TableSpec
from cache_server.store.mapped_rows import read_rows_alone
from cache_server.store.npy import map_original_ids
from cache_server.store.row_source import SourceRequest
from cache_server.wire import little_endian

FEATURES: Final = "features"
"""the kind of tables with features"""
_Gather = Callable[[NDArray[np.int64], NDArray[np.uint8]], None]
"""Copies rows, numbered from 0, into [n, row_bytes]."""


class Table:
    """A table of rows, which ``gather`` copies into [n, row_bytes] uint8, given :meth:`local_rows`.

    ``scratch_bytes`` are what it needs for a row meanwhile. BadRequest if a row cannot be read.
    """

    def __init__(
        self, spec: TableSpec, server: int, gather: _Gather, row_bytes: int = 0, scratch: int = 0
    ) -> None:
        self.spec, self.gather, self.scratch_bytes = spec, gather, scratch
        self.row_bytes = row_bytes or spec.dim * little_endian(spec.dtype).itemsize
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


def table_of_file(spec: TableSpec, array: NDArray[Any], server: int, together: int = 0) -> Table:
    """Make a table of a memory-mapped array, one of files with ``together`` bytes of features."""
    stored = array.view(np.uint8)
    if read_rows_alone(array, together):
        # Imported here only, since importing compiled kernels dominates a server's start.
        from cache_server.store.read_ahead import take_ahead

        return Table(spec, server, partial(take_ahead, stored))

    def gather(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        # With mode="raise" numpy would gather into a temporary buffer first.
        np.take(stored, rows, axis=0, out=out, mode="clip")

    return Table(spec, server, gather)


def table_of_ids(kind: str, type: str, ids: NDArray[np.integer[Any]], server: int) -> Table:
    """Make a table of an array of ids of four or eight bytes, which are sent with eight."""
    spec = TableSpec(kind=kind, type=type, first_id=0, count=ids.size, dim=1, dtype="int64")

    def gather(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        out.view(little_endian("int64"))[:, 0] = ids[rows]

    return Table(spec, server, gather)


def table_of_source(
    partitioned: Path,
    node_type: str,
    server: int,
    offsets: Mapping[str, Sequence[int]],
    request: SourceRequest,
) -> Table:
    """Make a table of features that a user's class reads by original id, and try it."""
    try:
        first, stop = offsets[node_type][server : server + 2]
        all_ids = map_original_ids(partitioned, node_type, offsets[node_type])
    except (ValueError, KeyError, IndexError, TypeError, ManifestError) as error:
        raise SourceError(
            f"features of {node_type}: {partitioned} does not tell of such nodes "
            f"({type(error).__name__}: {error})"
        ) from error
    source = request.make(node_type, server, all_ids.size)
    source.check(all_ids[first:stop])
    rows: Any = {"first_id": first, "count": stop - first, "dim": source.dim}
    spec = TableSpec(kind=FEATURES, type=node_type, dtype=source.dtype_name, **rows)

    def gather(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        try:
            out.view(little_endian(spec.dtype))[:] = source.read(all_ids[first + rows])
        except SourceError as error:
            raise BadRequest(str(error)) from error

    return Table(spec, server, gather)


def round_table(table: Table, form: str, server: int) -> Table:
    """Make a table of float32 rows rounded to float16, bfloat16 or int8 as they are read."""
    codec = find_codec(form)
    if table.spec.dtype != "float32":
        raise BadRequest(
            f"form: rows of {table.name} are {table.spec.dtype}; only float32 is rounded, to "
            f"{form} as to any form"
        )

    def gather(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        stored = np.empty((rows.size, table.row_bytes), np.uint8)
        table.gather(rows, stored)
        floats = stored.view(little_endian("float32"))
        numbers = codec.encode(floats)
        if codec.name == "float16":
            lost = np.isinf(numbers) & np.isfinite(floats)
            if lost.any():
                raise BadRequest(
                    f"form: rows of {table.name} have numbers beyond what float16 can hold, such "
                    f"as {floats[lost][0]:g}; expected bfloat16 or int8"
                )
        out[:] = numbers.view(np.uint8).reshape(out.shape)

    # Beside its own row, a rounded one needs the stored row and intermediate results.
    row_bytes, scratch_bytes = codec.row_bytes(table.spec.dim), 3 * table.row_bytes
    return Table(table.spec, server, gather, row_bytes, scratch_bytes)
