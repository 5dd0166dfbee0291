"""How many replies a server sends at once, to whom, and how long a reader may leave one unread.

A reply occupies a thread until its last chunk is on its way, and a reader that does not read stops
it there. Without limits as many unread replies as there are threads would stop the server.
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

DEFAULT_SEND_SECONDS: Final = 30.0
_LOOKS_A_LIMIT: Final = 10


class TooManyReplies(Exception):
    """A peer has as many replies under way as it may."""


class Stream:
    """One reply under way.

    Attributes
    ----------
    began, since: when it did, and when it last moved, of ``time.monotonic``.
    rows, neighbours: how many it has sent.
    nbytes: of the messages that it has sent.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        peer = context.peer()
        self.names = (peer, _address(peer))
        """its connection and address"""
        self.held = 0
        """bytes of memory"""
        self.began = self.since = time.monotonic()
        self.rows = self.neighbours = self.nbytes = 0
        self.is_given_up = False

    def sends(self, message: bytes, *, rows: int = 0, neighbours: int = 0) -> None:
        """Say that another chunk is about to be sent."""
        self.since = time.monotonic()
        self.rows += rows
        self.neighbours += neighbours
        self.nbytes += len(message)


class FlowControl:
    """Counts the replies under way and ends those that do not move.

    A connection may have a quarter of the threads, and all connections of one address three
    quarters: who asks from elsewhere always finds one.

    Parameters
    ----------
    threads: replies that are sent at the same time.
    send_seconds: how long a reader may leave a chunk of about 1 MiB unread, and how long who asks
        may take to send a request.
    memory: what they may hold.
    largest_request: bytes that a request may have, which is not known before it has come.
    """

    def __init__(
        self, threads: int, send_seconds: float, memory: MemoryInFlight, largest_request: int
    ) -> None:
        self.memory = memory
        self._largest_request = largest_request
        self.on_given_up: Callable[[Stream], None] = lambda _stream: None
        """called with every reply that is, since nobody reads it"""
        self._send_seconds = send_seconds
        self._per_connection = max(1, threads // 4)
        self._per_address = max(1, threads * 3 // 4)
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._by_peer: Counter[str] = Counter()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._end_stalled, name="flow", daemon=True)

    def start(self) -> None:
        """Look after replies from now on."""
        self._watch.start()

    def stop(self) -> None:
        """Leave them alone from now on."""
        self._ended.set()
        if self._watch.is_alive():
            self._watch.join()

    @property
    def under_way(self) -> int:
        """How many replies are."""
        return len(self._streams)

    @contextmanager
    def admit(self, stream: Stream) -> Iterator[None]:
        """Count a reply for as long as it is under way.

        Raises
        ------
        TooManyReplies: this connection or address has as many as it may.
        MemoryExhausted: a request might be larger than what is left.
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
                # Those that have none are forgotten.
                self._by_peer += Counter()

    def hold(self, stream: Stream, nbytes: int, *, asks: bool = True) -> None:
        """Let a reply hold another number of bytes; see :meth:`MemoryInFlight.change`."""
        self.memory.change(stream.names, stream.held, nbytes, asks=asks)
        stream.held = nbytes

    def _end_stalled(self) -> None:
        while not self._ended.wait(min(1.0, self._send_seconds / _LOOKS_A_LIMIT)):
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
    """The peer without its port: "ipv4:10.0.0.1:4242" -> "ipv4:10.0.0.1"."""
    return peer.rpartition(":")[0] or peer
