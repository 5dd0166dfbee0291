"""Draws requests to a feature server, of which one in ten is valid."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from benchmarks.faults.load import features_of, rows_of, rows_request
from cache_server.draws.spec import VERSION
from cache_server.generated import features_pb2
from cache_server.store.shard import Shard
from cache_server.wire import CHECK, DESCRIBE, DESCRIBE_GRAPH, FETCH_ROWS, READ_IDS, STREAMS

UNKNOWN: Final = "/hopper.features.v1.FeatureService/Unknown"
_SINGLE: Final = {DESCRIBE: features_pb2.DescribeRequest, CHECK: features_pb2.HealthCheckRequest,
                  DESCRIBE_GRAPH: features_pb2.DescribeGraphRequest}  # fmt: skip
_KINDS: Final = {
    "good": 10, "bits flipped": 20, "cut short": 12, "random bytes": 20, "wrong field": 33,
    "large": 0.1, "other": 5,
}  # fmt: skip
"""and their weights"""
_LARGE: Final = (1 << 20, 9 << 20)
_TEXTS: Final = ("", "x", "k" * 257, "t" * 100_000, "float16", "|O", "a/b/c", "\0", "ä" * 200)
_INTEGERS: Final = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63))
_NUMBERS: Final = {
    FieldDescriptor.TYPE_UINT32: (0, 1, 2**31, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**31, 2**63, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 1, 2**31, 2**63, 2**64 - 1),
}
"""by type of field, for those that are not as ``_INTEGERS``"""


class Requests:
    """Draws requests to a shard's server, valid and malformed ones."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self._draw = random.Random(seed)
        self._table = features_of(shard)
        self._relations: Sequence[str] = list(shard.in_edges)
        self._arrays = [table.spec for table in shard.graph.tables()]

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
            good = bytes(changed)
        elif kind == "cut short":
            good = good[: draw.randrange(len(good) or 1)]
        elif kind == "random bytes":
            good = draw.randbytes(draw.randrange(1, 200))
        elif kind == "large":
            good = draw.randbytes(draw.choice(_LARGE))
        elif kind == "other":
            method = UNKNOWN
        else:
            kind, good = f"wrong field of {message.DESCRIPTOR.name}", self._spoil(message)
        return kind, method, good, None

    def good(self) -> tuple[bytes, bytes]:
        """Make a valid request for rows, and return it with the rows."""
        ids = self._ids()
        return rows_request(self._table, ids).SerializeToString(), rows_of(self._table, ids)

    def _ids(self) -> Any:
        spec = self._table.spec
        count = self._draw.randrange(1, 20)
        return np.array([spec.first_id + self._draw.randrange(spec.count) for _ in range(count)])

    def _any_message(self) -> tuple[str, Message]:
        method = self._draw.choice((FETCH_ROWS, FETCH_ROWS, *STREAMS, *_SINGLE))
        if method == FETCH_ROWS:
            return method, rows_request(self._table, self._ids())
        if method in _SINGLE:
            return method, _SINGLE[method]()
        if method == READ_IDS:
            array = self._draw.choice(self._arrays)
            first, count = (self._draw.randrange(array.count + 2) for _ in range(2))
            names = {"kind": array.kind, "type": array.type}
            return method, features_pb2.ReadIdsRequest(first=first, count=count, **names)
        draws = [
            features_pb2.NeighborDraw(
                relation=self._draw.choice(self._relations), nodes=self._ids().tobytes(),
                method=self._draw.choice(("uniform", "labor", "replacement")),
                fanout=self._draw.choice((-1, 1, 5)), key=self._draw.getrandbits(64),
                version=VERSION,
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
        return self._draw.choice(_NUMBERS.get(field.type, _INTEGERS))
