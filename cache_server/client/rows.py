"""Calls whose answers are rows: of tables by id, and of arrays of ids by range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.pending_call import PendingCall
from cache_server.row_form import RowForm, find_form
from cache_server.wire import DTYPES, check_name, encode_ids, read_chunk


class Destination:
    """The table that is read, and the array that the rows of all servers go to."""

    def __init__(self, kind: str, type: str, out: NDArray[Any], form: str = "") -> None:
        if out.ndim not in (1, 2) or not out.flags.c_contiguous or not out.flags.writeable:
            raise BadRequest(
                "out: expected a writable C-contiguous array [rows, dim] or [rows], found shape "
                f"{out.shape}, strides {out.strides}, writable {out.flags.writeable}"
            )
        if out.dtype.name not in DTYPES or not out.dtype.isnative:
            raise BadRequest(f"out: dtype {out.dtype.str} is not one of {', '.join(DTYPES)}")
        check_name("kind", kind)
        check_name("type", type)
        self.form = find_form(form) if form else None
        if form and out.dtype != np.float32:
            raise BadRequest(f"form: {form} rounds float32 rows; out has {out.dtype.name}")
        dim = out.shape[1] if out.ndim == 2 else 1
        self.name = f"{kind}/{type}"
        self.table = {
            "kind": kind, "type": type, "dtype": out.dtype.name, "dim": dim, "form": form,
        }  # fmt: skip
        self.rows = out.reshape(len(out), dim).view(np.uint8)
        self.row_bytes = self.rows.shape[1] if self.form is None else self.form.row_bytes(dim)
        """size of a row in messages"""


class RowsCall(PendingCall):
    """The rows that one server contributes to a destination."""

    def __init__(
        self,
        server: int,
        ids: NDArray[np.int64],
        destination: Destination,
        place: slice | NDArray[np.int64],
    ) -> None:
        _check_ids(f"ids for server {server}: expected", ids)
        rows = destination.rows
        if isinstance(place, slice):
            rows = rows[place]
            count = len(rows)
        else:
            _check_ids(f"places for server {server}: expected a slice or", place)
            if place.size and (place.min() < 0 or place.max() >= len(rows)):
                bad = place[(place < 0) | (place >= len(rows))][0]
                raise BadRequest(
                    f"places for server {server}: {bad} is outside [0, {len(rows)}), rows of out"
                )
            count = place.size
        if count != ids.size:
            raise BadRequest(f"places for server {server}: {count} rows for {ids.size} ids")
        super().__init__(server, ids.size)
        self._ids = ids
        self._table = destination.table
        self._rows = rows
        self._row_bytes = destination.row_bytes
        self._form = destination.form
        self._place = None if isinstance(place, slice) else place

    def request(self, start: int, end: int) -> bytes:
        """Return the serialised ``FetchRowsRequest`` for some of the ids."""
        ids = encode_ids(self._ids[start:end])
        return features_pb2.FetchRowsRequest(ids=ids, **self._table).SerializeToString()

    def take(self, message: bytes, seed: int) -> None:
        """Copy the rows of a ``RowChunk`` to their places."""
        data = read_chunk(message, seed)
        row_bytes = self._row_bytes
        count, remainder = divmod(data.size, row_bytes)
        if remainder or self.done + count > self.end:
            raise ValueError(
                f"a chunk of {data.size} bytes where at most {self.end - self.done} rows of "
                f"{row_bytes} bytes were due"
            )
        span = slice(self.done, self.done + count)
        target = span if self._place is None else self._place[span]
        rows = data.reshape(count, row_bytes)
        self._rows[target] = rows if self._form is None else _to_float32(rows, self._form)
        self.done += count


class IdsCall(RowsCall):
    """A range of an array of ids that one server has; ``out`` [count] int64 receives it."""

    def __init__(
        self, server: int, kind: str, type: str, first: int, out: NDArray[np.int64]
    ) -> None:
        positions = np.arange(first, first + out.size)
        super().__init__(server, positions, Destination(kind, type, out), slice(None))
        self._first, self._names = first, {"kind": kind, "type": type}

    def request(self, start: int, end: int) -> bytes:
        """Return the serialised ``ReadIdsRequest`` for a part of the range."""
        first = self._first + start
        request = features_pb2.ReadIdsRequest(first=first, count=end - start, **self._names)
        return bytes(request.SerializeToString())


def _to_float32(rows: NDArray[np.uint8], form: RowForm) -> NDArray[np.uint8]:
    """Convert the bytes of rounded rows, [n, bytes of a rounded row], to those of float32 rows."""
    numbers = rows.view(form.dtype.newbyteorder("<")).astype(form.dtype, copy=False)
    return form.decode(numbers).view(np.uint8)


def _check_ids(expected: str, ids: NDArray[np.int64]) -> None:
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise BadRequest(f"{expected} [n] int64, found {ids.dtype} {ids.shape}")
