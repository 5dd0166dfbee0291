"""Clocks of ranks that take turns in one process, and the links between their servers.

A rank's clock counts the processor seconds of its turns. A message ends when the last rank that
takes part has come, after the latency and its bytes over the link's rate. A rank that waits for it
sets its clock to that moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class MessageCost:
    """Processor seconds at one end of a message: per message, and per byte."""

    message: float = 0.0
    byte: float = 0.0

    def of(self, messages: float, nbytes: float) -> float:
        """Return the processor seconds of some messages with ``nbytes`` together."""
        return messages * self.message + nbytes * self.byte


@dataclass(frozen=True)
class Link:
    """Every server's link to all others, with the same rate in both directions.

    ``latency`` is in seconds, ``bits_per_second`` is None where it is unlimited. ``between_ranks``
    and ``rows`` are the processor time of messages between ranks, and of requests for rows.
    """

    bits_per_second: float | None = None
    latency: float = 0.0
    ranks_per_server: int = 1
    between_ranks: MessageCost = MessageCost()
    rows: MessageCost = MessageCost()

    def seconds(self, nbytes: float) -> float:
        """Return the time of bytes that one server sends or receives, without the latency."""
        return 0.0 if self.bits_per_second is None else 8 * nbytes / self.bits_per_second


class RankClock:
    """The seconds of one rank, which stand still during other ranks' turns; ``turn`` is the lock
    that the rank whose turn it is holds."""

    def __init__(self, rank: int, link: Link, turn: threading.Lock) -> None:
        self._server, self._link, self._turn = rank // link.ranks_per_server, link, turn
        self._busy = self._waited = self._since = 0.0
        self._runs = False

    def read(self) -> float:
        """Return the present time in seconds."""
        return self.busy() + self._waited

    def busy(self) -> float:
        """Return the processor seconds so far."""
        return self._busy + (time.process_time() - self._since if self._runs else 0.0)

    @contextmanager
    def turns(self) -> Iterator[None]:
        """Run all of the rank within its turns, and count their processor seconds."""
        with self._turn:
            self._go_on()
            yield

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the clock stand still during the block."""
        self._busy, self._runs = self.busy(), False
        try:
            yield
        finally:
            self._go_on()

    def _go_on(self) -> None:
        self._since, self._runs = time.process_time(), True

    def begin(
        self, sizes: Mapping[int, float], steps: int = 1, ends: int = 2, *, together: bool = False
    ) -> float:
        """Count what messages take of this rank's processor, and return when they have arrived.

        Parameters
        ----------
        sizes: by receiving rank, the bytes of a step.
        steps: number of steps that follow each other.
        ends: 2 if the rank receives as much as it sends, 1 if it does either.
        together: whether all ranks of the server send at once, and so share its link.
        """
        link, size = self._link, self._link.ranks_per_server
        messages, nbytes = steps * ends * len(sizes), steps * ends * sum(sizes.values())
        self._busy += link.between_ranks.of(messages, nbytes)
        crossing = sum(n for rank, n in sizes.items() if rank // size != self._server)
        crossing *= size if together else 1
        return self.read() + (steps * (link.latency + link.seconds(crossing)) if crossing else 0.0)

    def fetch(self, requests: int, nbytes: float) -> None:
        """Count what requests to feature servers take, with ``nbytes`` in both directions, while
        all ranks of the server fetch as many."""
        link = self._link
        if nbytes:
            self._busy += link.rows.of(requests, nbytes)
            self._waited += 2 * link.latency + link.seconds(nbytes * link.ranks_per_server)

    def wait(self, message: Future[float], limit: float) -> None:
        """Wait for a message, whose result is the moment at which it has arrived everywhere; end
        this rank's turn meanwhile."""
        with self.stopped():
            self._turn.release()
            try:
                arrived = message.result(limit)
            finally:
                self._turn.acquire()
        self._waited += max(0.0, arrived - self.read())
