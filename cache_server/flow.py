"""Limits of the replies that a server sends at once, in all and to each client.

A reply occupies a thread until its last chunk has been sent, and a client that sends no request or
does not read blocks it. Without limits, as many such calls as there are threads would block the
server. The one that has waited longest for its client makes room when another call finds none.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cache_server.events import events
from cache_server.memory_in_flight import MemoryInFlight, NoRoom

_CHECKS_PER_LIMIT: Final = 10
_SHARE_TO_MAKE_ROOM: Final = 0.1
"""share of the limit after which a call that waits for its client may make room for another"""


class Stream:
    """One running reply.

    Attributes
    ----------
    names: the client's connection and its address.
    held: bytes of memory that the reply holds.
    began: when it began, by ``time.monotonic``.
    waits_since: since when it waits for its client; infinite while the server works on the reply.
    waited: seconds that it has waited for its client before, in all.
    rows, neighbours: how many it has sent.
    nbytes: size of the messages that it has sent.
    is_given_up: whether it was cancelled because its client let it wait.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        peer = context.peer()
        self.names = (peer, _address(peer))
        self.held = 0
        self.began = time.monotonic()
        self.waits_since, self.waited = math.inf, 0.0
        self.rows = self.neighbours = self.nbytes = 0
        self.is_given_up = False

    @contextmanager
    def wait_for_client(self) -> Iterator[None]:
        """Count the time of the block as time in which the reply waits for its client."""
        self.waits_since = time.monotonic()
        try:
            yield
        finally:
            self.waited += time.monotonic() - self.waits_since
            self.waits_since = math.inf

    def count_message(self, message: bytes, *, rows: int = 0, neighbours: int = 0) -> None:
        """Count a chunk that is about to be sent."""
        self.rows += rows
        self.neighbours += neighbours
        self.nbytes += len(message)


class FlowControl:
    """Counts running replies, and cancels those whose client lets them wait.

    A connection may have a quarter of the threads but at least two, since a rank samples and
    fetches at once. All connections of one address together may have three quarters. So with four
    threads or more there is always one left for clients at other addresses.

    Parameters
    ----------
    threads: how many replies may be sent at the same time.
    send_seconds: how long a client may leave a chunk of about 1 MiB unread, and how long it may
        take to send its request.
    memory: limits the memory of all replies.
    largest_request: bytes that are reserved for a request whose size is not known yet.

    Attributes
    ----------
    on_given_up: called with every reply that is cancelled because its client lets it wait.
    """

    def __init__(
        self, threads: int, send_seconds: float, memory: MemoryInFlight, largest_request: int
    ) -> None:
        self.memory = memory
        self._largest_request = largest_request
        self.on_given_up: Callable[[Stream], None] = lambda _stream: None
        self._send_seconds = send_seconds
        self._per_connection = min(threads, max(2, threads // 4))
        self._per_address = max(self._per_connection, threads * 3 // 4)
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._by_peer: Counter[str] = Counter()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._end_idle, name="flow", daemon=True)

    def start(self) -> None:
        """Start the thread that cancels replies whose client lets them wait."""
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
        NoRoom: its connection or address has the most replies that it may have, or the largest
            request would not fit the memory that is left.
        """
        names = stream.names
        with self._lock:
            for name, limit in zip(names, (self._per_connection, self._per_address), strict=True):
                if self._by_peer[name] >= limit:
                    raise NoRoom(name, f"{limit} replies to {name} are under way, and no more may")
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

    def make_room(self, client: str = "") -> None:
        """Give up the reply that has waited longest for its client in all, if it did for a while.

        Parameters
        ----------
        client: name of the connection or address that needs room; "" = any.
        """
        now = time.monotonic()
        with self._lock:
            waited = {
                stream: stream.waited + max(0.0, now - stream.waits_since)
                for stream in self._streams
                if not stream.is_given_up and (not client or client in stream.names)
            }
            slowest = max(waited, key=waited.__getitem__, default=None)
            if slowest is None or waited[slowest] < _SHARE_TO_MAKE_ROOM * self._send_seconds:
                return
            slowest.is_given_up = True
        self._give_up(slowest, waited[slowest], "to make room for another call")

    def _end_idle(self) -> None:
        while not self._ended.wait(min(1.0, self._send_seconds / _CHECKS_PER_LIMIT)):
            if self.memory.waiting:
                self.make_room()
            now = time.monotonic()
            with self._lock:
                idle = [
                    stream
                    for stream in self._streams
                    if now - stream.waits_since > self._send_seconds and not stream.is_given_up
                ]
                for stream in idle:
                    stream.is_given_up = True
            for stream in idle:
                self._give_up(stream, self._send_seconds, "at the limit of --send-timeout")

    def _give_up(self, stream: Stream, seconds: float, why: str) -> None:
        what = "its chunks to be read" if stream.nbytes else "its request"
        text = f"a call is given up {why}: it waited {seconds:.1f} s for {what}"
        events.note("slow reader", text, peer=stream.names[0], bytes=stream.nbytes)
        stream.context.cancel()
        self.on_given_up(stream)


def _address(peer: str) -> str:
    """Remove the port from a peer's name: "ipv4:10.0.0.1:4242" -> "ipv4:10.0.0.1"."""
    return peer.rpartition(":")[0] or peer
