"""One fetch of rows from several servers, and how many rows of each have arrived."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.ask import Question
from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.row_form import RowForm, find_form
from cache_server.wire import DTYPES, check_name, encode_ids, read_chunk


class Part(Question):
    """The rows that one server contributes to a fetch.

    Parameters
    ----------
    ids: [n] int64 global ids.
    fetch: the table, and the array that all servers' rows go to.
    place: the rows of that array to fill, in the order of ``ids``: a slice, or [n] int64.

    Raises
    ------
    BadRequest: ids and places do not fit each other or the destination.
    """

    def __init__(
        self,
        server: int,
        ids: NDArray[np.int64],
        fetch: Fetch,
        place: slice | NDArray[np.int64],
    ) -> None:
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise BadRequest(
                f"ids for server {server}: expected [n] int64, found {ids.dtype} {ids.shape}"
            )
        rows = fetch.rows
        if isinstance(place, slice):
            rows = rows[place]
            count = len(rows)
        else:
            _check_places(server, place, len(rows))
            count = place.size
        if count != ids.size:
            raise BadRequest(f"places for server {server}: {count} rows for {ids.size} ids")
        super().__init__(server, ids.size)
        self._ids = ids
        self._table = fetch.table
        self._rows = rows
        self._row_bytes = fetch.row_bytes
        self._form = fetch.form
        self._place = None if isinstance(place, slice) else place

    def request(self, start: int, end: int) -> bytes:
        """Return the serialised ``FetchRowsRequest`` for some of the ids."""
        ids = encode_ids(self._ids[start:end])
        return features_pb2.FetchRowsRequest(ids=ids, **self._table).SerializeToString()

    def take(self, message: bytes, seed: int) -> None:
        """Copy the rows of a ``RowChunk`` to their places; errors as :meth:`Question.take`."""
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
        self._rows[target] = rows if self._form is None else to_float32(rows, self._form)
        self.done += count


class Fetch:
    """The table and the array of rows that all parts of one fetch share.

    Parameters
    ----------
    kind, type: name of the table.
    out, form: as of :meth:`FeatureClient.fetch_rows`.

    Raises
    ------
    BadRequest: ``out`` cannot receive rows, no table can have this name, or rows of another dtype
        than float32 are to be rounded.
    """

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
        self.table = {"kind": kind, "type": type, "dtype": out.dtype.name, "dim": dim}
        if form:
            self.table["form"] = form
        self.rows = out.reshape(len(out), dim).view(np.uint8)
        self.row_bytes = self.rows.shape[1] if self.form is None else self.form.row_bytes(dim)
        """size of a row in messages"""
        self.operation = f"FetchRows {kind}/{type}"


def to_float32(rows: NDArray[np.uint8], form: RowForm) -> NDArray[np.uint8]:
    """Convert the bytes of rounded rows, [n, bytes of a rounded row], to those of float32 rows."""
    numbers = rows.view(form.dtype.newbyteorder("<")).astype(form.dtype, copy=False)
    return form.decode(numbers).view(np.uint8)


def _check_places(server: int, places: NDArray[np.int64], rows: int) -> None:
    if places.dtype != np.int64 or places.ndim != 1:
        raise BadRequest(
            f"places for server {server}: expected a slice or [n] int64, "
            f"found {places.dtype} {places.shape}"
        )
    if places.size and (places.min() < 0 or places.max() >= rows):
        bad = places[(places < 0) | (places >= rows)][0]
        raise BadRequest(f"places for server {server}: {bad} is outside [0, {rows}), rows of out")
