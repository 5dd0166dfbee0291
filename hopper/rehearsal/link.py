"""The time that messages between servers take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sizes = NDArray[np.float64]


@dataclass(frozen=True)
class MessageCost:
    """Processor seconds at one end of a message: per message, and per byte."""

    message: float
    byte: float

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

    bits_per_second: float | None
    latency: float
    ranks_per_server: int
    between_ranks: MessageCost
    rows: MessageCost

    def seconds(self, nbytes: float) -> float:
        """Return the time of bytes that one server sends or receives, without the latency."""
        return 0.0 if self.bits_per_second is None else 8 * nbytes / self.bits_per_second

    def ring(self, ranks: list[int], nbytes: float, steps: int) -> float:
        """Return the time of ``steps`` in which all ranks pass ``nbytes`` to the next one."""
        servers = {rank // self.ranks_per_server for rank in ranks}
        crossing = self.latency + self.seconds(nbytes) if len(servers) > 1 else 0.0
        return steps * crossing

    def between(self, source: int, destination: int, nbytes: float) -> float:
        """Return the time of a message from one rank to another."""
        if source // self.ranks_per_server == destination // self.ranks_per_server:
            return 0.0
        return self.latency + self.seconds(nbytes)

    def all_to_all(self, sizes: Sizes) -> Sizes:
        """Return [n, n] seconds until rank i's message has reached rank j, if all send at once.

        Parameters
        ----------
        sizes: [n, n] bytes from rank i to rank j.
        """
        servers = np.arange(len(sizes)) // self.ranks_per_server
        count = int(servers[-1]) + 1
        by_server = np.zeros((count, count))
        np.add.at(by_server, (servers[:, None], servers[None, :]), sizes)
        np.fill_diagonal(by_server, 0.0)
        sent, received = by_server.sum(1)[servers], by_server.sum(0)[servers]
        bytes_on_busier_link = np.maximum(sent[:, None], received[None, :])
        seconds = np.full_like(sizes, self.latency)
        if self.bits_per_second is not None:
            seconds += 8 * bytes_on_busier_link / self.bits_per_second
        seconds[servers[:, None] == servers[None, :]] = 0.0
        return seconds

    def fetch(self, nbytes: float) -> float:
        """Return the time to fetch rows while all ranks of the server fetch as many."""
        return 2 * self.latency + self.seconds(nbytes * self.ranks_per_server)
