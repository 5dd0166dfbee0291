"""Limits of what a server does at once, in all and for each client: replies, and their memory.

A reply occupies a thread until its last chunk has been sent, and a client that sends no request or
does not read blocks it. gRPC bounds the calls of a server and of a connection, but neither their
memory nor their time. The reply that has waited longest for its client makes room when another call
finds none.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, Final

from cache_server.available_memory import available_memory
from cache_server.events import events
from cache_server.wire import LONGEST_HINT_MS, RETRY_AFTER

_CHECKS_PER_LIMIT: Final = 10
_SHARE_TO_MAKE_ROOM: Final = 0.1
"""share of the limit after which a call that waits for its client may make room for another"""
_MOST_MEMORY: Final = 1 << 30
COPIES_OF_REQUEST: Final = 4
"""a request, its ids, their rows, and temporaries of the conversion"""
COPIES_OF_CHUNK: Final = 3
"""a chunk of rows, its message, and gRPC's copy of the message"""
COPIES_OF_DRAW: Final = 8
"""times the size of a message of neighbours: draws are in 64 bits and joined, messages in 32"""
_FIRST_HINT_MS: Final = 50
_ALL: Final = ""
"""the name of all clients together"""


def default_memory() -> int:
    """Return the default limit: 1 GiB, or a quarter of the available memory if that is less."""
    return min(_MOST_MEMORY, max(1, available_memory() // 4))


class NoRoom(Exception):
    """A client, or "" for all of them together, has the replies or the memory that it may have."""

    def __init__(self, client: str, text: str) -> None:
        super().__init__(text)
        self.client = client


class CountedPool(futures.ThreadPoolExecutor):
    """A thread pool that counts in :attr:`waiting` the tasks that have not begun."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self.waiting = 0
        self._lock = threading.Lock()

    def submit(self, task: Any, /, *arguments: Any, **options: Any) -> futures.Future[Any]:
        """Submit a task, and count it as waiting until it begins."""
        self._count(1)
        return super().submit(self._begin, task, *arguments, **options)

    def _begin(self, task: Any, /, *arguments: Any, **options: Any) -> Any:
        self._count(-1)
        return task(*arguments, **options)

    def _count(self, change: int) -> None:
        with self._lock:
            self.waiting += change


class Reply:
    """One running reply to a connection, ``peer``, which ``cancel`` ends."""

    def __init__(self, peer: str, cancel: Callable[[], object]) -> None:
        self.cancel = cancel
        # "ipv4:10.0.0.1:4242" and "ipv4:10.0.0.1"
        self.names = (peer, peer.rpartition(":")[0] or peer, _ALL)
        self.held = 0
        self.began = time.monotonic()
        # Since when it waits for its client, infinite while the server works on it; and seconds of
        # earlier waits.
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
    """Counts running replies and their memory, and cancels those whose client lets them wait.

    A connection may have a quarter of the threads but at least two, since a rank samples and
    fetches at once, and a quarter of the memory. All connections of one address may have three
    quarters. So with four threads or more there is always one left for clients at other addresses.
    A single reply may exceed its share of memory, since it could never be sent otherwise.
    """

    def __init__(
        self, threads: int, send_seconds: float, memory: int, largest_request: int
    ) -> None:
        # The threads of all replies; seconds that one may wait for its client; bytes that all may
        # hold, and those that are reserved for a request whose size is not known yet.
        self.pool = CountedPool(threads, "feature")
        self.limit = memory
        self.on_given_up: Callable[[Reply], None] = lambda _reply: None
        self._largest_request = largest_request
        self._send_seconds = send_seconds
        a_connection = min(threads, max(2, threads // 4))
        an_address = max(a_connection, threads * 3 // 4)
        # By name of a reply: the most replies and the most bytes.
        self._limits = ((a_connection, memory // 4), (an_address, memory // 4 * 3), (None, memory))
        self._lock = threading.Lock()
        self._replies: set[Reply] = set()
        self._running: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
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
    def nbytes(self) -> int:
        """The bytes that replies hold now."""
        return self._held[_ALL]

    @contextmanager
    def admit(self, reply: Reply) -> Iterator[None]:
        """Count a reply as running during the block."""
        with self._lock:
            for name, (most, _) in zip(reply.names, self._limits, strict=True):
                if most is not None and self._running[name] >= most:
                    raise NoRoom(name, f"{most} replies to {name} are under way, and no more may")
            self._running.update(reply.names)
            self._replies.add(reply)
        try:
            self.hold(reply, self._largest_request)
            yield
        finally:
            self.hold(reply, 0)
            with self._lock:
                self._replies.discard(reply)
                self._running.subtract(reply.names)
                # This removes clients without running replies, or the counters would grow forever.
                self._running += Counter()
                self._held += Counter()

    def retry_hint(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a refusal: the more requests wait, the later to try again."""
        return ((RETRY_AFTER, str(min(LONGEST_HINT_MS, _FIRST_HINT_MS + self.pool.waiting))),)

    def hold(self, reply: Reply, nbytes: int, *, asks: bool = True) -> None:
        """Set the bytes that a reply holds."""
        with self._lock:
            change = nbytes - reply.held
            if asks and change > 0:
                for name, (_, share) in zip(reply.names, self._limits, strict=True):
                    others = self._held[name] - reply.held
                    if others and others + nbytes > share:
                        raise self._no_memory(name, share)
            for name in reply.names:
                self._held[name] += change
            reply.held = nbytes

    def make_room(self, client: str = _ALL) -> None:
        """Give up the reply that has waited longest for its client, if it did for a while."""
        now = time.monotonic()
        with self._lock:
            waited = {
                reply: reply.waited + max(0.0, now - reply.waits_since)
                for reply in self._replies
                if not reply.is_given_up and client in reply.names
            }
            slowest = max(waited, key=waited.__getitem__, default=None)
            if slowest is None or waited[slowest] < _SHARE_TO_MAKE_ROOM * self._send_seconds:
                return
            slowest.is_given_up = True
        self._give_up(slowest, waited[slowest], "to make room for another call")

    def _end_idle(self) -> None:
        while not self._ended.wait(min(1.0, self._send_seconds / _CHECKS_PER_LIMIT)):
            if self.pool.waiting:
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
        events.note("slow reader", text, peer=reply.names[0], bytes=reply.nbytes)
        reply.cancel()
        self.on_given_up(reply)

    def _no_memory(self, client: str, limit: int) -> NoRoom:
        whose = client or "all"
        text = f"replies to {whose} may hold {limit:,} bytes of this server's memory, and do"
        return NoRoom(client, text)
