"""Limits of what a server does at once, in all and for each address: replies, and their memory.

A reply occupies a thread until its last chunk has been sent, and a client that sends no request or
does not read blocks it. gRPC bounds the calls of a server, but neither their memory nor their time,
and where it bounds those of a connection, clients that close one with waiting calls hang. The reply
that has waited longest for its client makes room when another call finds none.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Final

from cache_server.available_memory import available_memory
from cache_server.events import events

_CHECKS_PER_LIMIT: Final = 10
_SHARE_TO_MAKE_ROOM: Final = 0.1
"""share of the limit after which a call that waits for its client may make room for another"""
_MOST_MEMORY: Final = 1 << 30
_UNLIMITED: Final = 1 << 62
COPIES_OF_REQUEST: Final = 4
"""a request, its ids, their rows, and temporaries of the conversion"""
COPIES_OF_CHUNK: Final = 3
"""a chunk of rows, its message, and gRPC's copy of the message"""
COPIES_OF_DRAW: Final = 8
"""times the size of a message of neighbours: draws are in 64 bits and joined, messages in 32"""


def default_memory() -> int:
    """Return the default limit: 1 GiB, or a quarter of the available memory if that is less."""
    return min(_MOST_MEMORY, max(1, available_memory() // 4))


class NoRoom(Exception):
    """An address, or "" for all of them together, has the replies or memory that it may have."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__(text)
        self.address = address


class Reply:
    """One running reply to a connection, ``peer``, which ``cancel`` ends."""

    def __init__(self, peer: str, cancel: Callable[[], object] = lambda: None) -> None:
        # "ipv4:10.0.0.1:4242" and "ipv4:10.0.0.1"
        self.peer, self.address = peer, peer.rpartition(":")[0] or peer
        self.cancel = cancel
        self.began = time.monotonic()
        # Since when it waits for its client, infinite while the server works on it; and seconds of
        # earlier waits.
        self.waits_since, self.waited = math.inf, 0.0
        self.held = self.rows = self.neighbours = self.nbytes = 0
        self.is_given_up = False

    @contextmanager
    def wait_for_client(self) -> Iterator[None]:
        """Count the time of the block as time in which the reply waits for its client."""
        self.waits_since = time.monotonic()
        try:
            yield
        finally:
            self.waited, self.waits_since = self.seconds_waited(), math.inf

    def seconds_waited(self) -> float:
        """Return how long it has waited for its client, all waits together."""
        return self.waited + max(0.0, time.monotonic() - self.waits_since)

    def count_message(self, message: bytes, *, rows: int = 0, neighbours: int = 0) -> None:
        """Count a chunk that is about to be sent."""
        self.rows += rows
        self.neighbours += neighbours
        self.nbytes += len(message)


class FlowControl:
    """Counts running replies and their memory, and cancels those whose client lets them wait.

    One address may have three quarters of the threads and of the memory, and a connection a quarter
    of the threads; both may have two replies at least, since a rank samples and fetches at once. So
    with four threads or more there is always one left for clients at other addresses. A single
    reply may exceed its share of memory, since it could never be sent otherwise. A reply may wait
    ``send_seconds`` at a time for its client. As long as the size of its request is not known,
    ``largest_request`` is reserved.
    """

    def __init__(
        self,
        threads: int = 1,
        memory: int = _UNLIMITED,
        send_seconds: float = math.inf,
        largest_request: int = 0,
    ) -> None:
        self.pool = futures.ThreadPoolExecutor(threads, thread_name_prefix="feature")
        self.limit = memory
        self.on_given_up: Callable[[], None] = lambda: None
        self._of_a_connection = max(min(threads, 2), threads // 4)
        self._of_an_address = max(min(threads, 2), threads * 3 // 4)
        self._largest_request = largest_request
        self._send_seconds = send_seconds
        self._lock = threading.Lock()
        self._replies: set[Reply] = set()
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
        return len(self._replies)

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""
        return self.pool._work_queue.qsize()

    @property
    def nbytes(self) -> int:
        """The bytes that replies hold now."""
        with self._lock:
            return sum(reply.held for reply in self._replies)

    @contextmanager
    def admit(self, reply: Reply) -> Iterator[None]:
        """Count a reply as running during the block."""
        limits = {reply.peer: self._of_a_connection, reply.address: self._of_an_address}
        with self._lock:
            for name, most in limits.items():
                if sum(name in (other.peer, other.address) for other in self._replies) >= most:
                    text = f"{most} replies to {name} are under way, and no more may"
                    raise NoRoom(reply.address, text)
            self._replies.add(reply)
        try:
            self.hold(reply, self._largest_request)
            yield
        finally:
            with self._lock:
                self._replies.discard(reply)

    def hold(self, reply: Reply, nbytes: int, *, asks: bool = True) -> None:
        """Set the bytes that a reply holds; raise NoRoom if it asks for more than there are."""
        with self._lock:
            if asks and nbytes > reply.held:
                others = [other for other in self._replies if other is not reply]
                for address, limit in (("", self.limit), (reply.address, self.limit // 4 * 3)):
                    used = sum(other.held for other in others if address in ("", other.address))
                    if used and used + nbytes > limit:
                        whose = f"replies to {address or 'all'} may hold {limit:,} bytes"
                        raise NoRoom(address, f"{whose} of this server's memory, and do")
            reply.held = nbytes

    def make_room(self, address: str = "") -> None:
        """Give up the reply that has waited longest for its client, if it did for a while."""
        with self._lock:
            replies = (reply for reply in self._replies if address in ("", reply.address))
            candidates = (reply for reply in replies if not reply.is_given_up)
            slowest = max(candidates, key=Reply.seconds_waited, default=None)
            least = _SHARE_TO_MAKE_ROOM * self._send_seconds
            if slowest is None or slowest.seconds_waited() < least:
                return
            slowest.is_given_up = True
        self._give_up(slowest, slowest.seconds_waited(), "to make room for another call")

    def _end_idle(self) -> None:
        while not self._ended.wait(min(1.0, self._send_seconds / _CHECKS_PER_LIMIT)):
            if self.waiting:
                self.make_room()
            begun = time.monotonic() - self._send_seconds
            with self._lock:
                replies = (reply for reply in self._replies if not reply.is_given_up)
                idle = [reply for reply in replies if reply.waits_since < begun]
                for reply in idle:
                    reply.is_given_up = True
            for reply in idle:
                self._give_up(reply, self._send_seconds, "at the limit of --send-timeout")

    def _give_up(self, reply: Reply, seconds: float, why: str) -> None:
        what = "its chunks to be read" if reply.nbytes else "its request"
        text = f"a call is given up {why}: it waited {seconds:.1f} s for {what}"
        events.note("slow reader", text, peer=reply.peer, bytes=reply.nbytes)
        reply.cancel()
        self.on_given_up()
