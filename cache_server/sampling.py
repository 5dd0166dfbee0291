"""The draws of a hop that one server is asked to make, and the answers so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.pending_call import PendingCall
from cache_server.sampling_spec import VERSION, Drawn, SamplingSpec
from cache_server.wire import check_name, encode_ids, read_neighbours


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
    _chunks: list[tuple[NDArray[np.uint32], ...]] = field(default_factory=list, repr=False)

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

    def count_pairs(self) -> NDArray[np.int64]:
        """Return [n] int64: how many pairs the request for each node contains."""
        ends = [np.searchsorted(self.dst, self.nodes, side) for side in ("left", "right")]
        return np.asarray(ends[1] - ends[0])

    def take(self, chunk: tuple[NDArray[np.uint32], ...]) -> None:
        """Add the neighbors of the next nodes."""
        self._chunks.append(chunk)

    def neighbors(self) -> Drawn:
        """Return the neighbors of all nodes, in the order of the nodes."""
        counts, _, sources, positions = self._join_chunks()
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), sources, positions

    def in_degrees(self) -> NDArray[np.int64]:
        """Return [n] int64, of a draw in time: how many in-edges of each node are there then."""
        return self._join_chunks()[1]

    def _join_chunks(self) -> list[NDArray[np.int64]]:
        """Return counts, in-degrees, sources and positions of all chunks together."""
        empty = [np.empty(0, np.uint32)]
        parts = zip(*self._chunks, strict=True) if self._chunks else [empty] * 4
        return [np.concatenate(part).astype(np.int64) for part in parts]


class DrawCall(PendingCall):
    """Several draws that one server is asked to make at once; BadRequest of malformed ones."""

    def __init__(self, server: int, draws: Sequence[RemoteDraw]) -> None:
        for draw in draws:
            check_name("relation", draw.relation)
            if draw.nodes.dtype != np.int64 or draw.nodes.ndim != 1:
                raise BadRequest(
                    f"nodes for server {server}: expected [n] int64, found {draw.nodes.dtype} "
                    f"{draw.nodes.shape}"
                )
        self._draws = draws
        self._pairs = np.cumsum(
            np.concatenate([_no_ids(), *(draw.count_pairs() for draw in draws)])
        )
        self._ends = np.cumsum([draw.nodes.size for draw in draws]).tolist()
        super().__init__(server, self._ends[-1] if self._ends else 0)

    def end_of_request(self, start: int, limit: int) -> int:
        """Return the end of a request with at most ``limit`` nodes and ``limit`` pairs; BadRequest
        if those of one node exceed it."""
        end = super().end_of_request(start, limit)
        before = self._pairs[start - 1] if start else 0
        alone = self._pairs[start] - before
        if alone > limit:
            raise BadRequest(
                f"{alone} edges into one node are left out, more than the limit of {limit} ids in "
                "one request"
            )
        fitting = int(np.searchsorted(self._pairs, before + limit, "right"))
        return min(end, max(start + 1, fitting))

    def request(self, start: int, end: int) -> bytes:
        """Return the serialised ``SampleNeighborsRequest`` for some of the nodes."""
        requests = []
        for draw, stop in zip(self._draws, self._ends, strict=True):
            first = stop - draw.nodes.size
            part = slice(max(start - first, 0), min(max(end - first, 0), draw.nodes.size))
            if part.start < part.stop:
                requests.append(draw.request(part))
        return features_pb2.SampleNeighborsRequest(draws=requests).SerializeToString()

    def take(self, message: bytes, seed: int) -> None:
        """Add the neighbors of a ``NeighborChunk``; errors as :meth:`PendingCall.take`."""
        # The first draw that lacks the answer for any node; draws without nodes lack none.
        ends = zip(self._draws, self._ends, strict=True)
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
        draw.take(chunk)
        self.done += counts.size
