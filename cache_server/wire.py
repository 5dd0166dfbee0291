"""The wire format: raw little-endian bytes to and from numpy, and the sizes of messages.

``RowChunk`` messages are encoded and decoded here by hand, in protobuf's encoding of their two
fields. So rows are copied once on either side instead of three times, and generated stubs can still
read them. Specified in docs/inside/feature-service.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from cache_server.draws.spec import Drawn
from cache_server.errors import BadRequest

SERVICE: Final = "hopper.features.v1.FeatureService"
FETCH_ROWS: Final = f"/{SERVICE}/FetchRows"
SAMPLE_NEIGHBORS: Final = f"/{SERVICE}/SampleNeighbors"
DESCRIBE: Final = f"/{SERVICE}/Describe"
READ_IDS: Final = f"/{SERVICE}/ReadIds"
DESCRIBE_GRAPH: Final = f"/{SERVICE}/DescribeGraph"
CHECK: Final = "/grpc.health.v1.Health/Check"
STREAMS: Final = (FETCH_ROWS, SAMPLE_NEIGHBORS, READ_IDS)
"""methods whose requests and replies are bytes, and whose replies are streams"""
METHODS: Final = (*STREAMS, DESCRIBE, DESCRIBE_GRAPH, CHECK)

CHUNK_BYTES: Final = 1 << 20
ID_BYTES: Final = 8
NAME_BYTES: Final = 256
"""longest name of a kind or type, in UTF-8"""
DTYPES: Final = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint16")

PART_HEADER: Final = "hopper-part"
"""header of requests for rows and neighbours that names the server they are meant for. It costs
almost nothing, since HTTP/2 sends a repeated header as a number."""

_LARGEST: Final = 0xFFFF_FFFF
EDGES_PER_CHUNK: Final = CHUNK_BYTES // 8
"""edges in a chunk of neighbours, each with its source and position"""

# RowChunk and NeighborChunk have field 1, length-delimited, and field 2, of 64 bits.
_DATA_TAG: Final = 0x0A
_CHECKSUM_TAG: Final = 0x11
_CHECKSUM: Final = struct.Struct("<BQ")


def little_endian(name: str) -> np.dtype[Any]:
    """Return the little-endian dtype of a name in :data:`DTYPES`; raise ValueError for others."""
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return np.dtype(name).newbyteorder("<")


def encode_ids(ids: NDArray[np.int64]) -> bytes:
    """Encode [n] int64 as 8 n little-endian bytes."""
    return ids.astype("<i8", copy=False).tobytes()


def decode_ids(raw: bytes, limit: int, field: str = "ids") -> NDArray[np.int64]:
    """Decode 8 n little-endian bytes to [n] int64."""
    if len(raw) % ID_BYTES:
        raise BadRequest(f"{field}: {len(raw)} bytes are not a multiple of {ID_BYTES} (int64)")
    ids = len(raw) // ID_BYTES
    if ids > limit:
        raise BadRequest(f"{field}: {ids} ids exceed the limit of {limit} ids in one request")
    return np.frombuffer(raw, dtype="<i8").astype(np.int64, copy=False)


def name_part(server: int, division: str) -> str:
    """Name the server of one part of a division, for :data:`PART_HEADER` and errors."""
    return f"server {server} of the division {division}"


class AlteredChunk(ValueError):
    """A chunk is not what the server sent."""


def chunk_seeds(request: bytes) -> Iterator[int]:
    """Yield the seeds of a reply's checksums: of the request and the place of each chunk."""
    first = xxhash.xxh3_64_intdigest(request)
    return ((first + place) & 0xFFFF_FFFF_FFFF_FFFF for place in count())


def write_chunk(data: NDArray[Any], seed: int) -> bytes:
    """Serialise data, C-contiguous, as a ``RowChunk`` or ``NeighborChunk``, copying them once."""
    header = bytes([_DATA_TAG]) + _varint(data.nbytes)
    checksum = xxhash.xxh3_64_intdigest(data.data, seed)
    return b"".join((header, data.data, _CHECKSUM.pack(_CHECKSUM_TAG, checksum)))


def write_neighbours(drawn: Drawn, in_degrees: NDArray[np.int64], seed: int) -> bytes:
    """Serialise the neighbours of some nodes as a ``NeighborChunk``."""
    offsets, sources, positions = drawn
    if any(array.size and array.max() > _LARGEST for array in (sources, positions, in_degrees)):
        raise BadRequest(f"relation: ids, positions or degrees above {_LARGEST} cannot be told")
    counts = np.diff(offsets)
    body = np.concatenate(([counts.size], counts, in_degrees, sources, positions)).astype("<u4")
    return write_chunk(body, seed)


def read_neighbours(
    message: bytes, seed: int, *, in_time: bool = False
) -> tuple[NDArray[np.uint32], ...]:
    """Read the [n] counts, [n] or (without times) [0] in-degrees, [edges] source ids and [edges]
    positions of a ``NeighborChunk``; raise AlteredChunk, or ValueError if its size is wrong."""
    data = read_chunk(message, seed)
    words = np.frombuffer(data.data, "<u4", count=data.size // 4)
    nodes = int(words[0]) if words.size else 0
    counts = words[1 : nodes + 1]
    edges = int(counts.sum(dtype=np.int64))
    first = 1 + nodes * (1 + in_time)
    if not words.size or data.size % 4 or words.size != first + 2 * edges:
        raise ValueError(f"a chunk of {data.size} bytes where {edges} edges of {nodes} nodes stand")
    return counts, words[nodes + 1 : first], words[first : first + edges], words[first + edges :]


def read_chunk(message: bytes, seed: int) -> NDArray[np.uint8]:
    """Return the ``data`` field of a serialised chunk as [bytes] uint8, without copying."""
    if message[:1] == bytes([_DATA_TAG]):
        length, start = _read_varint(message, 1)
        if start + length + _CHECKSUM.size == len(message):
            tag, checksum = _CHECKSUM.unpack_from(message, start + length)
            data = np.frombuffer(message, np.uint8, count=length, offset=start)
            if tag == _CHECKSUM_TAG and checksum == xxhash.xxh3_64_intdigest(data.data, seed):
                return data
    raise AlteredChunk(f"{len(message)} bytes are not those that were sent")


def check_name(field: str, name: str) -> None:
    """Raise BadRequest if a name is too long for one of a table, or is no valid text."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise BadRequest(f"{field}: expected text, found {error.reason}") from error
    if size > NAME_BYTES:
        raise BadRequest(f"{field}: expected at most {NAME_BYTES} bytes, found {size}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, start: int) -> tuple[int, int]:
    """Return a varint's value and the offset after it; unfinished = a value that cannot fit."""
    value = 0
    for index, byte in enumerate(message[start : start + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    return len(message), len(message)
