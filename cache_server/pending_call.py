"""What a client asks of one server, and how much of the answer has arrived: rows and ids.

Draws of neighbors are in :mod:`cache_server.sampling`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest
from cache_server.feature_codec import find_codec
from cache_server.generated import features_pb2
from cache_server.wire import DTYPES, check_name, encode_ids, read_chunk


class PendingCall(ABC):
    """The ids that one server is asked for, of which ``done`` have been answered.

    Answers arrive in the order of the ids, so a retry asks for what is missing, and a large call
    becomes a sequence of requests, of which the running one ends before id ``end``.
    """

    def __init__(self, server: int, size: int) -> None:
        self.server = server
        self.size = size
        self.done = 0
        self.end = 0

    def end_of_request(self, start: int, limit: int) -> int:
        """Return the end of a request that begins at id ``start`` and has at most ``limit`` ids."""
        return min(start + limit, self.size)

    @abstractmethod
    def request(self, start: int, end: int) -> bytes:
        """Return the serialised request for ids ``start`` to ``end``."""

    @abstractmethod
    def take(self, message: bytes, seed: int) -> None:
        """Take the next chunk of the reply, of a checksum with ``seed``, and count it as done;
        raise AlteredChunk, or ValueError if it does not fit the call."""


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
        self.codec = find_codec(form) if form else None
        if form and out.dtype != np.float32:
            raise BadRequest(f"form: {form} rounds float32 rows; out has {out.dtype.name}")
        dim = out.shape[1] if out.ndim == 2 else 1
        self.name = f"{kind}/{type}"
        self.table = {
            "kind": kind, "type": type, "dtype": out.dtype.name, "dim": dim, "form": form,
        }  # fmt: skip
        self.rows = out.reshape(len(out), dim).view(np.uint8)
        self.row_bytes = self.rows.shape[1] if self.codec is None else self.codec.row_bytes(dim)
        """size of a row in messages"""


class RowsCall(PendingCall):
    """The rows that one server contributes to a destination."""

    def __init__(
        self,
        server: int,
        ids: NDArray[np.int64],
        destination: Destination,
        place: slice | NDArray[np.int64] = slice(None),
    ) -> None:
        _check_ids(f"ids for server {server}: expected", ids)
        rows = destination.rows
        if isinstance(place, slice):
            rows = rows[place]
            count = len(rows)
        else:
            _check_ids(f"places for server {server}: expected a slice or", place)
            is_outside = (place < 0) | (place >= len(rows))
            if is_outside.any():
                bad = place[is_outside][0]
                raise BadRequest(
                    f"places for server {server}: {bad} is outside [0, {len(rows)}), rows of out"
                )
            count = place.size
        if count != ids.size:
            raise BadRequest(f"places for server {server}: {count} rows for {ids.size} ids")
        super().__init__(server, ids.size)
        self._ids, self._destination = ids, destination
        self._rows = rows
        self._place = None if isinstance(place, slice) else place

    def request(self, start: int, end: int) -> bytes:
        """Return the serialised ``FetchRowsRequest`` for some of the ids."""
        ids, table = encode_ids(self._ids[start:end]), self._destination.table
        return features_pb2.FetchRowsRequest(ids=ids, **table).SerializeToString()

    def take(self, message: bytes, seed: int) -> None:
        """Copy the rows of a ``RowChunk`` to their places."""
        data, codec = read_chunk(message, seed), self._destination.codec
        row_bytes = self._destination.row_bytes
        count, remainder = divmod(data.size, row_bytes)
        if remainder or not count or self.done + count > self.end:
            raise ValueError(
                f"a chunk of {data.size} bytes where at most {self.end - self.done} rows of "
                f"{row_bytes} bytes were due"
            )
        span = slice(self.done, self.done + count)
        rows = data.reshape(count, row_bytes)
        if codec is not None:
            numbers = rows.view(codec.dtype.newbyteorder("<")).astype(codec.dtype, copy=False)
            rows = codec.decode(numbers).view(np.uint8)
        self._rows[span if self._place is None else self._place[span]] = rows
        self.done += count


class IdsCall(RowsCall):
    """A range of an array of ids that one server has."""

    def request(self, start: int, end: int) -> bytes:
        """Return the serialised ``ReadIdsRequest`` for a part of the range."""
        names = {name: self._destination.table[name] for name in ("kind", "type")}
        first = int(self._ids[start])
        request = features_pb2.ReadIdsRequest(first=first, count=end - start, **names)
        return bytes(request.SerializeToString())


def _check_ids(expected: str, ids: NDArray[np.int64]) -> None:
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise BadRequest(f"{expected} [n] int64, found {ids.dtype} {ids.shape}")
