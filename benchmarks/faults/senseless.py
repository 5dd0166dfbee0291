"""Draws requests to a feature server. One in ten is valid."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from cache_server.generated import features_pb2
from cache_server.shard import Shard
from cache_server.wire import CHECK, DESCRIBE, FETCH_ROWS, SAMPLE_NEIGHBORS

UNKNOWN: Final = "/hopper.features.v1.FeatureService/Unknown"
STREAMS: Final = (FETCH_ROWS, SAMPLE_NEIGHBORS)
_KINDS: Final = {
    "good": 10, "bits flipped": 20, "cut short": 12, "random bytes": 20, "wrong field": 33,
    "large": 0.1, "other": 5,
}  # fmt: skip
"""and their weights"""
_LARGE: Final = (1 << 20, 9 << 20)
_TEXTS: Final = ("", "x", "k" * 257, "t" * 100_000, "float16", "|O", "a/b/c", "\0", "ä" * 200)
_INTEGERS: Final = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63))
_UNSIGNED: Final = (0, 1, 2**31, 2**63, 2**64 - 1)
_UNSIGNED_TYPES: Final = {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64}


class Requests:
    """Draws requests to a shard's server, valid and senseless ones.

    Parameters
    ----------
    shard: whose rows and neighbours are asked for.
    """

    def __init__(self, shard: Shard, seed: int) -> None:
        self._draw = random.Random(seed)
        self._table = next(
            table for table in shard.tables.values() if table.spec.kind == "features"
        )
        self._relations: Sequence[str] = list(shard.in_edges)

    def draw(self) -> tuple[str, str, bytes, bytes | None]:
        """Draw a request: its kind, method and bytes, and the rows that must come if it is
        valid."""
        draw = self._draw
        kind = draw.choices(list(_KINDS), list(_KINDS.values()))[0]
        if kind == "good":
            return kind, FETCH_ROWS, *self.good()
        method, message = self._any_message()
        good = message.SerializeToString()
        if kind == "bits flipped":
            changed = bytearray(good or b"\0")
            for _ in range(draw.choice((1, 1, 2, 8))):
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            return kind, method, bytes(changed), None
        if kind == "cut short":
            return kind, method, good[: draw.randrange(len(good) or 1)], None
        if kind == "random bytes":
            return kind, method, draw.randbytes(draw.randrange(1, 200)), None
        if kind == "large":
            return kind, method, draw.randbytes(draw.choice(_LARGE)), None
        if kind == "other":
            return kind, UNKNOWN, good, None
        return f"wrong field of {message.DESCRIPTOR.name}", method, self._spoil(message), None

    def good(self) -> tuple[bytes, bytes]:
        """Make a valid request for rows, and return it with the rows."""
        ids = self._ids()
        rows = np.empty((ids.size, self._table.row_bytes), np.uint8)
        self._table.gather(self._table.local_rows(ids), rows)
        return self._rows_of(ids).SerializeToString(), rows.tobytes()

    def _ids(self) -> Any:
        spec = self._table.spec
        count = self._draw.randrange(1, 20)
        return np.array([spec.first_id + self._draw.randrange(spec.count) for _ in range(count)])

    def _rows_of(self, ids: Any) -> Message:
        spec = self._table.spec
        return features_pb2.FetchRowsRequest(
            kind=spec.kind, type=spec.type, ids=ids.astype("<i8").tobytes(), dtype=spec.dtype,
            dim=spec.dim,
        )  # fmt: skip

    def _any_message(self) -> tuple[str, Message]:
        method = self._draw.choice((FETCH_ROWS, FETCH_ROWS, *STREAMS, DESCRIBE, CHECK))
        if method == FETCH_ROWS:
            return method, self._rows_of(self._ids())
        if method == DESCRIBE:
            return method, features_pb2.DescribeRequest()
        if method == CHECK:
            return method, features_pb2.HealthCheckRequest(service="")
        draws = [
            features_pb2.NeighborDraw(
                relation=self._draw.choice(self._relations), nodes=self._ids().tobytes(),
                method=self._draw.choice(("uniform", "labor", "replacement")),
                fanout=self._draw.choice((-1, 1, 5)), key=self._draw.getrandbits(64),
            )
            for _ in range(self._draw.randrange(1, 4))
        ]  # fmt: skip
        return method, features_pb2.SampleNeighborsRequest(draws=draws)

    def _spoil(self, message: Message) -> bytes:
        """Put nonsense into any field of a message, or of a message in it."""
        target = message
        if isinstance(message, features_pb2.SampleNeighborsRequest):
            target = self._draw.choice(list(message.draws))
        fields = list(target.DESCRIPTOR.fields)
        if not fields:
            return message.SerializeToString() + self._draw.randbytes(9)
        field = self._draw.choice(fields)
        setattr(target, field.name, self._nonsense(field))
        return message.SerializeToString()

    def _nonsense(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._draw.choice(_TEXTS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            ids = np.array([self._draw.choice(_INTEGERS) for _ in range(3)], "<i8").tobytes()
            return self._draw.choice((ids, b"", self._draw.randbytes(self._draw.randrange(1, 64))))
        return self._draw.choice(_UNSIGNED if field.type in _UNSIGNED_TYPES else _INTEGERS)
