"""What a client asks of one server, and how much of the answer has arrived."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from cache_server.draws.spec import VERSION, Drawn, SamplingSpec
from cache_server.errors import BadRequest
from cache_server.feature_codec import find_codec
from cache_server.generated import features_pb2
from cache_server.wire import DTYPES, check_name, encode_ids, read_chunk, read_neighbours


class PendingCall(ABC):
    """The ids that one server is asked for, of which ``done`` have been answered.

    Answers arrive in the order of the ids, so a retry asks for what is missing, and a large call
    becomes a sequence of requests, of which the running one ends before id ``end``.
    """

    def __init__(self, server: int, size: int) -> None:
        self.server = server
        self.size = size
        self.done = self.end = 0

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


class MessageCall(PendingCall):
    """A request whose reply is one message, in which ``find_fault`` may find a reason to refuse."""

    def __init__(
        self,
        server: int,
        reply_type: type[Any],
        request: bytes = b"",
        find_fault: Callable[[Any], str] = lambda _reply: "",
    ) -> None:
        super().__init__(server, 1)
        self.reply: Any = None
        self._type, self._request, self._find_fault = reply_type, request, find_fault

    def request(self, start: int, end: int) -> bytes:
        """Return the serialised request."""
        return self._request

    def take(self, message: bytes, seed: int) -> None:
        """Decode and check the reply."""
        try:
            self.reply = self._type.FromString(message)
        except DecodeError as error:
            raise ValueError(f"{len(message)} bytes are not a {self._type.__name__}") from error
        if fault := self._find_fault(self.reply):
            raise ValueError(fault)
        self.done += 1


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
    """The rows that one server contributes to some places of a destination."""

    def __init__(
        self,
        server: int,
        ids: NDArray[np.int64],
        destination: Destination,
        places: slice | NDArray[np.int64],
    ) -> None:
        _check_ids(f"ids for server {server}: expected", ids)
        rows = destination.rows
        if isinstance(places, slice):
            rows = rows[places]
            count = len(rows)
        else:
            _check_ids(f"places for server {server}: expected a slice or", places)
            outside = places[(places < 0) | (places >= len(rows))]
            if outside.size:
                raise BadRequest(
                    f"places for server {server}: {outside[0]} is outside [0, {len(rows)}), rows "
                    "of out"
                )
            count = places.size
        if count != ids.size:
            raise BadRequest(f"places for server {server}: {count} rows for {ids.size} ids")
        super().__init__(server, ids.size)
        self._ids, self._destination, self._rows = ids, destination, rows
        self._places = None if isinstance(places, slice) else places

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
        self._rows[span if self._places is None else self._places[span]] = rows
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


def _no_ids() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass
class RemoteDraw:
    """A draw in one relation for nodes of one server, with the neighbors once they have arrived."""

    relation: str
    """as ``src/rel/dst``"""
    spec: SamplingSpec
    nodes: NDArray[np.int64]
    """[n] global ids of destinations, in any order; they may repeat"""
    sources: int
    """number of nodes of the source type; ids of neighbors must be less"""
    until: NDArray[np.int64] | None = None
    """[n] times of the nodes' roots, for draws in time"""
    src: NDArray[np.int64] = field(default_factory=_no_ids)
    dst: NDArray[np.int64] = field(default_factory=_no_ids)
    """[k] global ids, ascending by destination: ends of the edges that may not be drawn"""
    chunks: list[tuple[NDArray[np.uint32], ...]] = field(default_factory=list, repr=False)
    """the answers so far, as :func:`cache_server.wire.read_neighbours` returns them"""

    def request(self, part: slice) -> features_pb2.NeighborDraw:
        """Make the request for some of the nodes."""
        nodes, (method, fanout, key) = self.nodes[part], self.spec
        concerns_part = np.isin(self.dst, nodes)
        return features_pb2.NeighborDraw(
            relation=self.relation,
            nodes=encode_ids(nodes),
            version=VERSION,
            method=method,
            fanout=fanout,
            key=key.now,
            later_key=key.later,
            dependence=key.dependence,
            elapsed=key.elapsed,
            times=b"" if self.until is None else encode_ids(self.until[part]),
            without_sources=encode_ids(self.src[concerns_part]),
            without_destinations=encode_ids(self.dst[concerns_part]),
        )

    def neighbors(self) -> Drawn:
        """Return the neighbors of all nodes, in the order of the nodes."""
        counts, _, sources, positions = self._join_chunks()
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), sources, positions

    def in_degrees(self) -> NDArray[np.int64]:
        """Return [n] int64, of a draw in time: how many in-edges of each node are there then."""
        return self._join_chunks()[1]

    def _join_chunks(self) -> list[NDArray[np.int64]]:
        """Return counts, in-degrees, sources and positions of all chunks together."""
        parts = zip(*self.chunks, strict=True) if self.chunks else [[_no_ids()]] * 4
        return [np.concatenate(part).astype(np.int64) for part in parts]


class DrawCall(PendingCall):
    """Several draws that one server is asked to make at once; BadRequest of malformed ones."""

    def __init__(self, server: int, draws: Sequence[RemoteDraw]) -> None:
        for draw in draws:
            check_name("relation", draw.relation)
            _check_ids(f"nodes for server {server}: expected", draw.nodes)
        self._draws = draws
        pairs = [np.zeros(1, np.int64)]
        for draw in draws:
            first, stop = (
                np.searchsorted(draw.dst, draw.nodes, side) for side in ("left", "right")
            )
            pairs.append(stop - first)
        # Edges to leave out of the lists before each node of all draws together.
        self._pairs = np.cumsum(np.concatenate(pairs))
        self._ends = np.cumsum([0, *(draw.nodes.size for draw in draws)]).tolist()
        super().__init__(server, self._ends[-1])

    def end_of_request(self, start: int, limit: int) -> int:
        """Return the end of a request with at most ``limit`` nodes and ``limit`` pairs; BadRequest
        if those of one node exceed it."""
        before, end = self._pairs[start], super().end_of_request(start, limit)
        alone = self._pairs[start + 1] - before
        if alone > limit:
            raise BadRequest(
                f"{alone} edges into one node are left out, more than the limit of {limit} ids in "
                "one request"
            )
        return min(end, int(np.searchsorted(self._pairs, before + limit, "right")) - 1)

    def request(self, start: int, end: int) -> bytes:
        """Return the serialised ``SampleNeighborsRequest`` for some of the nodes."""
        requests = []
        for draw, first, stop in zip(self._draws, self._ends, self._ends[1:], strict=False):
            if max(start, first) < min(end, stop):
                requests.append(draw.request(slice(max(start - first, 0), end - first)))
        return features_pb2.SampleNeighborsRequest(draws=requests).SerializeToString()

    def take(self, message: bytes, seed: int) -> None:
        """Add the neighbors of a ``NeighborChunk``; errors as :meth:`PendingCall.take`."""
        # The first draw that lacks the answer for any node; draws without nodes lack none.
        ends = zip(self._draws, self._ends[1:], strict=True)
        draw, stop = next((draw, stop) for draw, stop in ends if stop > self.done)
        chunk = read_neighbours(message, seed, in_time=draw.spec.in_time)
        counts, _, sources, _ = chunk
        due = min(stop, self.end) - self.done
        if not 1 <= counts.size <= due:
            raise ValueError(f"neighbors of {counts.size} nodes where {due} were due")
        if sources.size and sources.max() >= draw.sources:
            raise ValueError(
                f"{draw.relation}: source {sources.max()} is outside [0, {draw.sources})"
            )
        draw.chunks.append(chunk)
        self.done += counts.size
