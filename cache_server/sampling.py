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


@dataclass
class NeighbourDraw:
    """A draw of one relation for nodes of one server.

    Attributes
    ----------
    relation: as ``src/rel/dst``.
    nodes: [n] int64 global ids of destinations, any order, repeats allowed; none is ordinary.
    sources: how many there are in all: no id is as large.
    """

    relation: str
    how: HopDraw
    nodes: NDArray[np.int64]
    sources: int
    _chunks: list[tuple[NDArray[np.uint32], ...]] = field(default_factory=list, repr=False)

    def take(self, chunk: tuple[NDArray[np.uint32], ...]) -> None:
        """Take the next nodes' neighbours."""
        self._chunks.append(chunk)

    def drawn(self) -> Drawn:
        """What all chunks together tell, in the order of the nodes."""
        empty = [np.empty(0, np.uint32)]
        counts, sources, positions = (
            np.concatenate(parts).astype(np.int64)
            for parts in (zip(*self._chunks, strict=True) if self._chunks else [empty] * 3)
        )
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), sources, positions


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
        self._ends = np.cumsum([draw.nodes.size for draw in draws]).tolist()
        super().__init__(server, self._ends[-1] if self._ends else 0)

    def request(self, start: int, end: int) -> bytes:
        """See :class:`Question`."""
        asked = []
        for draw, stop in zip(self._draws, self._ends, strict=True):
            first = stop - draw.nodes.size
            nodes = draw.nodes[max(start - first, 0) : max(end - first, 0)]
            if nodes.size:
                method, fanout, key = draw.how
                asked.append(
                    features_pb2.NeighborDraw(
                        relation=draw.relation,
                        nodes=encode_ids(nodes),
                        method=method,
                        fanout=fanout,
                        key=key,
                    )
                )
        return features_pb2.SampleNeighborsRequest(draws=asked).SerializeToString()

    def take(self, message: bytes, seed: int) -> None:
        """See :class:`Question`."""
        chunk = read_neighbours(message, seed)
        counts, sources, _ = chunk
        # Of those whose nodes have not all been answered, the first one with any.
        draw, stop = next(
            (draw, stop)
            for draw, stop in zip(self._draws, self._ends, strict=True)
            if stop > self.done
        )
        due = min(stop, self.end) - self.done
        if not 1 <= counts.size <= due:
            raise ValueError(f"neighbours of {counts.size} nodes where {due} were due")
        if sources.size and sources.max() >= draw.sources:
            raise ValueError(
                f"{draw.relation}: source {sources.max()} is outside [0, {draw.sources})"
            )
        draw.take(chunk)
        self.done += counts.size
