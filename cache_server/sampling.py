"""One server's share of a hop's draws: what was drawn so far, and what is still to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cache_server.ask import Question
from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.hop_draw import Drawn, HopDraw
from cache_server.wire import check_name, encode_ids, read_neighbours


def _no_ids() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass
class NeighbourDraw:
    """A draw of one relation for nodes of one server.

    Attributes
    ----------
    relation: as ``src/rel/dst``.
    nodes: [n] int64 global ids of destinations, any order, repeats allowed; none is ordinary.
    sources: how many there are in all: no id is as large.
    until: [n] int64, the times of the nodes' roots, in draws in time.
    src, dst: [k] int64 global ids, ascending by destination: the pairs of nodes whose edges may not
        be drawn; destinations that are none of the nodes do no harm.
    """

    relation: str
    how: HopDraw
    nodes: NDArray[np.int64]
    sources: int
    until: NDArray[np.int64] | None = None
    src: NDArray[np.int64] = field(default_factory=_no_ids)
    dst: NDArray[np.int64] = field(default_factory=_no_ids)
    _chunks: list[tuple[NDArray[np.uint32], ...]] = field(default_factory=list, repr=False)

    def request(self, part: slice) -> features_pb2.NeighborDraw:
        """The request for some of the nodes."""
        nodes, (method, fanout, key) = self.nodes[part], self.how
        chosen = np.isin(self.dst, nodes)
        return features_pb2.NeighborDraw(
            relation=self.relation,
            nodes=encode_ids(nodes),
            method=method,
            fanout=fanout,
            key=key,
            times=b"" if self.until is None else encode_ids(self.until[part]),
            without_sources=encode_ids(self.src[chosen]),
            without_destinations=encode_ids(self.dst[chosen]),
        )

    def count_pairs(self) -> NDArray[np.int64]:
        """[n] int64: how many pairs a request for each of the nodes has."""
        ends = [np.searchsorted(self.dst, self.nodes, side) for side in ("left", "right")]
        return np.asarray(ends[1] - ends[0])

    def take(self, chunk: tuple[NDArray[np.uint32], ...]) -> None:
        """Take the next nodes' neighbours."""
        self._chunks.append(chunk)

    def drawn(self) -> Drawn:
        """What all chunks together tell, in the order of the nodes."""
        counts, _, sources, positions = self._told()
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), sources, positions

    def in_degrees(self) -> NDArray[np.int64]:
        """[n] int64, of a draw in time: how many in-edges of each node are there at its time."""
        return self._told()[1]

    def _told(self) -> list[NDArray[np.int64]]:
        empty = [np.empty(0, np.uint32)]
        parts = zip(*self._chunks, strict=True) if self._chunks else [empty] * 4
        return [np.concatenate(part).astype(np.int64) for part in parts]


class DrawQuestion(Question):
    """Several draws, which one server is asked for at once.

    Raises
    ------
    BadRequest: a draw's nodes are no ids, or no relation can have its name.
    """

    def __init__(self, server: int, draws: Sequence[NeighbourDraw]) -> None:
        for draw in draws:
            check_name("relation", draw.relation)
            if draw.nodes.dtype != np.int64 or draw.nodes.ndim != 1:
                raise BadRequest(
                    f"nodes for server {server}: expected [n] int64, found {draw.nodes.dtype} "
                    f"{draw.nodes.shape}"
                )
        self._draws = draws
        self._pairs = np.cumsum(
            np.concatenate([_no_ids(), *(each.count_pairs() for each in draws)])
        )
        self._ends = np.cumsum([draw.nodes.size for draw in draws]).tolist()
        super().__init__(server, self._ends[-1] if self._ends else 0)

    def end_of_request(self, start: int, limit: int) -> int:
        """See :class:`Question`; a request has no more pairs than nodes, if it is for several."""
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
        """See :class:`Question`."""
        asked = []
        for draw, stop in zip(self._draws, self._ends, strict=True):
            first = stop - draw.nodes.size
            part = slice(max(start - first, 0), min(max(end - first, 0), draw.nodes.size))
            if part.start < part.stop:
                asked.append(draw.request(part))
        return features_pb2.SampleNeighborsRequest(draws=asked).SerializeToString()

    def take(self, message: bytes, seed: int) -> None:
        """See :class:`Question`."""
        # Of those whose nodes have not all been answered, the first one with any.
        draw, stop = next(
            (draw, stop)
            for draw, stop in zip(self._draws, self._ends, strict=True)
            if stop > self.done
        )
        chunk = read_neighbours(message, seed, in_time=draw.how.in_time)
        counts, _, sources, _ = chunk
        due = min(stop, self.end) - self.done
        if not 1 <= counts.size <= due:
            raise ValueError(f"neighbours of {counts.size} nodes where {due} were due")
        if sources.size and sources.max() >= draw.sources:
            raise ValueError(
                f"{draw.relation}: source {sources.max()} is outside [0, {draw.sources})"
            )
        draw.take(chunk)
        self.done += counts.size
