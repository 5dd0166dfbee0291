"""Limits of the replies that a server sends at once, in all and to each client.

A reply occupies a thread until its last chunk has been sent, and a client that does not read blocks
it. Without limits, as many unread replies as there are threads would block the server.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cache_server.events import events
from cache_server.memory_in_flight import MemoryInFlight

_CHECKS_PER_LIMIT: Final = 10


class TooManyReplies(Exception):
    """A client already has the most running replies that it may have."""


class Stream:
    """One running reply.

    Attributes
    ----------
    names: the client's connection and its address.
    held: bytes of memory that the reply holds.
    began, since: when it began, and when it last sent a chunk, by ``time.monotonic``.
    rows, neighbours: how many it has sent.
    nbytes: size of the messages that it has sent.
    is_given_up: whether it was cancelled because nobody read it.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        peer = context.peer()
        self.names = (peer, _address(peer))
        self.held = 0
        self.began = self.since = time.monotonic()
        self.rows = self.neighbours = self.nbytes = 0
        self.is_given_up = False

    def count_message(self, message: bytes, *, rows: int = 0, neighbours: int = 0) -> None:
        """Count a chunk that is about to be sent."""
        self.since = time.monotonic()
        self.rows += rows
        self.neighbours += neighbours
        self.nbytes += len(message)


class FlowControl:
    """Counts running replies, and cancels those that nobody reads.

    A connection may have a quarter of the threads, and all connections of one address together
    three quarters. So there is always a thread left for clients at other addresses.

    Parameters
    ----------
    threads: how many replies may be sent at the same time.
    send_seconds: how long a client may leave a chunk of about 1 MiB unread, and how long it may
        take to send its request.
    memory: limits the memory of all replies.
    largest_request: bytes that are reserved for a request whose size is not known yet.

    Attributes
    ----------
    on_given_up: called with every reply that is cancelled because nobody reads it.
    """

    def __init__(
        self, threads: int, send_seconds: float, memory: MemoryInFlight, largest_request: int
    ) -> None:
        self.memory = memory
        self._largest_request = largest_request
        self.on_given_up: Callable[[Stream], None] = lambda _stream: None
        self._send_seconds = send_seconds
        self._per_connection = max(1, threads // 4)
        self._per_address = max(1, threads * 3 // 4)
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._by_peer: Counter[str] = Counter()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._end_stalled, name="flow", daemon=True)

    def start(self) -> None:
        """Start the thread that cancels replies which nobody reads."""
        self._watch.start()

    def stop(self) -> None:
        """Stop that thread."""
        self._ended.set()
        if self._watch.is_alive():
            self._watch.join()

    @property
    def running(self) -> int:
        """The number of running replies."""
        return len(self._streams)

    @contextmanager
    def admit(self, stream: Stream) -> Iterator[None]:
        """Count a reply as running during the block.

        Raises
        ------
        TooManyReplies: its connection or address has the most replies that it may have.
        MemoryExhausted: the largest request would not fit the memory that is left.
        """
        names = stream.names
        with self._lock:
            for name, limit in zip(names, (self._per_connection, self._per_address), strict=True):
                if self._by_peer[name] >= limit:
                    raise TooManyReplies(
                        f"{limit} replies to {name} are under way, and no more may"
                    )
            self._by_peer.update(names)
            self._streams.add(stream)
        try:
            self.hold(stream, self._largest_request)
            yield
        finally:
            self.hold(stream, 0)
            with self._lock:
                self._streams.discard(stream)
                self._by_peer.subtract(names)
                # This removes clients without running replies.
                self._by_peer += Counter()

    def hold(self, stream: Stream, nbytes: int, *, asks: bool = True) -> None:
        """Set the bytes that a reply holds; see :meth:`MemoryInFlight.change`."""
        self.memory.change(stream.names, stream.held, nbytes, asks=asks)
        stream.held = nbytes

    def _end_stalled(self) -> None:
        while not self._ended.wait(min(1.0, self._send_seconds / _CHECKS_PER_LIMIT)):
            limit = time.monotonic() - self._send_seconds
            with self._lock:
                stalled = [
                    stream
                    for stream in self._streams
                    if stream.since < limit and not stream.is_given_up
                ]
            for stream in stalled:
                stream.is_given_up = True
                text = f"a reply that nobody has read for {self._send_seconds:g} s is given up"
                events.note("slow reader", text, peer=stream.names[0], bytes=stream.nbytes)
                stream.context.cancel()
                self.on_given_up(stream)


def _address(peer: str) -> str:
    """Remove the port from a peer's name: "ipv4:10.0.0.1:4242" -> "ipv4:10.0.0.1"."""
    return peer.rpartition(":")[0] or peer
