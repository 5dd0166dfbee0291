"""Clocks of ranks that take turns in one process, and the links between their servers.

A rank's clock counts the processor seconds of its turns. A message ends when the last rank that
takes part has come, after the latency and its bytes over the link's rate. A rank that waits for it
sets its clock to that moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
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

    Attributes
    ----------
    bits_per_second: rate; None = unlimited.
    latency: seconds of a message from one server to another, without its bytes.
    between_ranks: processor time of messages between ranks.
    rows: processor time of requests to feature servers and their replies.
    """

    bits_per_second: float | None = None
    latency: float = 0.0
    ranks_per_server: int = 1
    between_ranks: MessageCost = MessageCost()
    rows: MessageCost = MessageCost()

    def seconds(self, nbytes: float) -> float:
        """Return the time of bytes that one server sends or receives, without the latency."""
        return 0.0 if self.bits_per_second is None else 8 * nbytes / self.bits_per_second

    def message_seconds(self, rank: int, sizes: Mapping[int, float], together: bool) -> float:
        """Return the time of a step of :meth:`RankClock.begin`."""
        size = self.ranks_per_server
        crossing = sum(n for other, n in sizes.items() if other // size != rank // size)
        senders = size if together else 1
        return self.latency + self.seconds(crossing * senders) if crossing else 0.0

    def fetch_seconds(self, nbytes: float) -> float:
        """Return the time to fetch rows while all ranks of the server fetch as many."""
        return 2 * self.latency + self.seconds(nbytes * self.ranks_per_server)


class SerialScheduler:
    """Lets the ranks of a world run one at a time, each until it waits for others."""

    def __init__(self, world: int) -> None:
        self._turn = threading.Lock()
        self._running = world
        self._waiting: dict[int, Future[float]] = {}

    @contextmanager
    def turns(self) -> Iterator[None]:
        """Run all of a rank within its turns."""
        with self._turn:
            yield
            self._running -= 1
            self._check()

    def wait(self, rank: int, message: Future[float]) -> None:
        """End a rank's turn, and begin the next one when a message has ended or failed.

        Raises
        ------
        RuntimeError: all ranks wait for each other.
        """
        self._waiting[rank] = message
        self._check()
        self._turn.release()
        wait([message])
        self._turn.acquire()
        del self._waiting[rank]

    def _check(self) -> None:
        """Refuse that all ranks wait. One whose message has ended only waits for its turn."""
        messages = self._waiting.values()
        if messages and len(messages) == self._running and not any(m.done() for m in messages):
            raise RuntimeError("all ranks wait for each other")


class RankClock:
    """The seconds of one rank, which stand still during other ranks' turns."""

    def __init__(self, rank: int, link: Link, scheduler: SerialScheduler) -> None:
        self._rank, self._link, self._scheduler = rank, link, scheduler
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
        with self._scheduler.turns():
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
        together: whether all ranks of the server send as much at once.
        """
        messages, nbytes = ends * steps * len(sizes), ends * steps * sum(sizes.values())
        self._busy += self._link.between_ranks.of(messages, nbytes)
        return self.read() + steps * self._link.message_seconds(self._rank, sizes, together)

    def fetch(self, requests: int, nbytes: float) -> None:
        """Count what requests to feature servers take, with ``nbytes`` in both directions."""
        if not nbytes:
            return
        self._busy += self._link.rows.of(requests, nbytes)
        self._waited += self._link.fetch_seconds(nbytes)

    def wait(self, message: Future[float]) -> None:
        """Wait for a message, whose result is the moment at which it has arrived everywhere."""
        with self.stopped():
            self._scheduler.wait(self._rank, message)
            arrived = message.result()
        self._waited += max(0.0, arrived - self.read())
