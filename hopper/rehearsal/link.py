"""What messages between servers take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sizes = NDArray[np.float64]


@dataclass(frozen=True)
class MessageCost:
    """Processor seconds of one end of a message: for itself, and for each of its bytes."""

    message: float
    byte: float

    def of(self, messages: float, nbytes: float) -> float:
        """Of some messages."""
        return messages * self.message + nbytes * self.byte


@dataclass(frozen=True)
class Link:
    """Every server's link to all others, of the same rate in both directions.

    Attributes
    ----------
    bits_per_second: None = not limited. latency: seconds from a server to another.
    between_ranks, rows: what messages between ranks, and requests to feature servers with their
        replies, take of the processor at each end.
    """

    bits_per_second: float | None
    latency: float
    ranks_per_server: int
    between_ranks: MessageCost
    rows: MessageCost

    def seconds(self, nbytes: float) -> float:
        """What bytes take that one server sends or receives, without the latency."""
        return 0.0 if self.bits_per_second is None else 8 * nbytes / self.bits_per_second

    def ring(self, ranks: list[int], nbytes: float, steps: int) -> float:
        """Messages of ``nbytes`` that go around some ranks, all at once, in so many steps."""
        servers = {each // self.ranks_per_server for each in ranks}
        crossing = self.latency + self.seconds(nbytes) if len(servers) > 1 else 0.0
        return steps * crossing

    def between(self, source: int, destination: int, nbytes: float) -> float:
        """A message from a rank to another."""
        if source // self.ranks_per_server == destination // self.ranks_per_server:
            return 0.0
        return self.latency + self.seconds(nbytes)

    def all_to_all(self, sizes: Sizes) -> Sizes:
        """[n, n]: seconds until what rank i has for rank j is there, all sending at once.

        Parameters
        ----------
        sizes: [n, n] bytes from rank i to rank j.
        """
        servers = np.arange(len(sizes)) // self.ranks_per_server
        count = int(servers[-1]) + 1
        by_server = np.zeros((count, count))
        np.add.at(by_server, (servers[:, None], servers[None, :]), sizes)
        np.fill_diagonal(by_server, 0.0)
        leaving, coming = by_server.sum(1)[servers], by_server.sum(0)[servers]
        bytes_in_the_way = np.maximum(leaving[:, None], coming[None, :])
        seconds = np.full_like(sizes, self.latency)
        if self.bits_per_second is not None:
            seconds += 8 * bytes_in_the_way / self.bits_per_second
        seconds[servers[:, None] == servers[None, :]] = 0.0
        return seconds

    def fetch(self, nbytes: float) -> float:
        """Rows that a rank reads of other servers while those beside it do the same."""
        return 2 * self.latency + self.seconds(nbytes * self.ranks_per_server)
