"""Clocks of ranks that are threads of one process, and the links between their servers.

A rank's clock counts the processor seconds of its thread. A message ends when the last rank that
takes part has come, after the latency and its bytes over the link's rate. A rank that waits for it
sets its clock to that moment.
"""

from __future__ import annotations

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
    """The seconds of one rank, whose thread makes it."""

    def __init__(self, rank: int, link: Link) -> None:
        self._server, self._link = rank // link.ranks_per_server, link
        self._messages, self._waited = -time.thread_time(), 0.0
        """processor seconds of messages, less those of the thread that do not count; and waiting"""

    def read(self) -> float:
        """Return the present time in seconds."""
        return self.busy() + self._waited

    def busy(self) -> float:
        """Return the processor seconds so far."""
        return self._messages + time.thread_time()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the clock stand still during the block."""
        begun = time.thread_time()
        try:
            yield
        finally:
            self._messages -= time.thread_time() - begun

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
        self._messages += link.between_ranks.of(messages, nbytes)
        crossing = sum(n for rank, n in sizes.items() if rank // size != self._server)
        crossing *= size if together else 1
        return self.read() + (steps * (link.latency + link.seconds(crossing)) if crossing else 0.0)

    def fetch(self, requests: int, nbytes: float) -> None:
        """Count what requests to feature servers take, with ``nbytes`` in both directions, while
        all ranks of the server fetch as many."""
        link = self._link
        if nbytes:
            self._messages += link.rows.of(requests, nbytes)
            self._waited += 2 * link.latency + link.seconds(nbytes * link.ranks_per_server)

    def wait(self, message: Future[float], limit: float) -> None:
        """Wait for a message, whose result is the moment at which it has arrived everywhere."""
        arrived = message.result(limit)
        self._waited += max(0.0, arrived - self.read())
