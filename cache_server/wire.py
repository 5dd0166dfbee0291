"""What crosses the network: raw little-endian bytes to and from numpy, and how much at once.

A ``RowChunk`` is read and written here by hand, in the protobuf encoding of its one field, so that
rows are copied once on either side instead of three times; any generated stub reads the same
bytes. Specified in docs/feature-service.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest

SERVICE: Final = "hopper.features.v1.FeatureService"
FETCH_ROWS: Final = f"/{SERVICE}/FetchRows"
DESCRIBE: Final = f"/{SERVICE}/Describe"

CHUNK_BYTES: Final = 1 << 20
IDS_PER_REQUEST: Final = 1 << 20
ID_BYTES: Final = 8
DTYPES: Final = ("float16", "float32", "float64", "int32", "int64", "uint8")

# Field 1, length-delimited: the only field of RowChunk.
_DATA_TAG: Final = 0x0A


def little_endian(name: str) -> np.dtype[Any]:
    """The little-endian dtype of one of :data:`DTYPES`; ValueError for any other name."""
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return np.dtype(name).newbyteorder("<")


def encode_ids(ids: NDArray[np.int64]) -> bytes:
    """[n] int64 -> 8 n bytes, little-endian."""
    return ids.astype("<i8", copy=False).tobytes()


def decode_ids(raw: bytes, limit: int) -> NDArray[np.int64]:
    """8 n bytes, little-endian -> [n] int64.

    Raises
    ------
    BadRequest: the length is not a multiple of 8, or there are more than ``limit`` ids.
    """
    if len(raw) % ID_BYTES:
        raise BadRequest(f"ids: {len(raw)} bytes are not a multiple of {ID_BYTES} (int64)")
    count = len(raw) // ID_BYTES
    if count > limit:
        raise BadRequest(f"ids: {count} ids exceed the limit of {limit} ids in one request")
    return np.frombuffer(raw, dtype="<i8").astype(np.int64, copy=False)


def rows_per_chunk(row_bytes: int) -> int:
    """How many rows of ``row_bytes`` go into a chunk of about 1 MiB (at least one)."""
    return max(1, CHUNK_BYTES // row_bytes)


class ChunkWriter:
    """Builds the ``RowChunk`` messages of one reply in one buffer that is used again and again.

    Parameters
    ----------
    rows: rows in the whole reply.
    row_bytes: bytes in a row.
    """

    def __init__(self, rows: int, row_bytes: int) -> None:
        self._rows = rows
        self._row_bytes = row_bytes
        self._step = min(rows, rows_per_chunk(row_bytes))

    def chunks(self) -> Iterator[tuple[slice, NDArray[np.uint8], bytearray]]:
        """Yield (which rows of the reply, [k, row_bytes] uint8 to fill with them, message).

        The message is complete once the rows are filled in, and valid until the next iteration.
        """
        for first in range(0, self._rows, max(1, self._step)):
            count = min(self._step, self._rows - first)
            if first == 0 or count != self._step:
                message, body = self._allocate(count)
            yield slice(first, first + count), body, message

    def _allocate(self, rows: int) -> tuple[bytearray, NDArray[np.uint8]]:
        header = bytes([_DATA_TAG]) + _varint(rows * self._row_bytes)
        message = bytearray(len(header) + rows * self._row_bytes)
        message[: len(header)] = header
        body = np.frombuffer(message, dtype=np.uint8, offset=len(header))
        return message, body.reshape(rows, self._row_bytes)


def chunk_data(message: bytes) -> NDArray[np.uint8]:
    """The ``data`` of a serialised ``RowChunk`` as [bytes] uint8, without a copy.

    Raises
    ------
    ValueError: the message is not a ``RowChunk`` with just that field.
    """
    if not message:
        # How protobuf encodes no data at all.
        return np.empty(0, np.uint8)
    if message[0] == _DATA_TAG:
        length, start = _read_varint(message, 1)
        if start + length == len(message):
            return np.frombuffer(message, dtype=np.uint8, offset=start)
    raise ValueError(f"a message of {len(message)} bytes is not a RowChunk")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, start: int) -> tuple[int, int]:
    """(value, offset after it); an unfinished varint gives a length that cannot fit."""
    value = 0
    for place, byte in enumerate(message[start : start + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    return len(message), len(message)
