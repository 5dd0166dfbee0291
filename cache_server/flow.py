"""How many replies a server sends at once, to whom, and how long a reader may leave one unread.

A reply occupies a thread until its last chunk is on its way, and a reader that does not read stops
it there. Without limits as many unread replies as there are threads would stop the server.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

DEFAULT_SEND_SECONDS: Final = 30.0
_LOOKS_A_LIMIT: Final = 10


class TooManyReplies(Exception):
    """A peer has as many replies under way as it may."""


class Stream:
    """One reply under way."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.since = time.monotonic()
        """when it last moved"""

    def moved(self) -> None:
        """Say that another chunk is about to be sent."""
        self.since = time.monotonic()


class FlowControl:
    """Counts the replies under way and ends those that do not move.

    A connection may have a quarter of the threads, and all connections of one address three
    quarters: who asks from elsewhere always finds one.

    Parameters
    ----------
    threads: replies that are sent at the same time.
    send_seconds: how long a reader may leave a chunk of about 1 MiB unread.
    """

    def __init__(self, threads: int, send_seconds: float) -> None:
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

    @contextmanager
    def stream(self, context: Any) -> Iterator[Stream]:
        """Count a reply for as long as it is under way.

        Raises
        ------
        TooManyReplies: this connection or address has as many as it may.
        """
        stream, peer = Stream(context), context.peer()
        names = (peer, _address(peer))
        with self._lock:
            for name, limit in zip(names, (self._per_connection, self._per_address), strict=True):
                if self._by_peer[name] >= limit:
                    raise TooManyReplies(
                        f"{limit} replies to {name} are under way, and no more may"
                    )
            self._by_peer.update(names)
            self._streams.add(stream)
        try:
            yield stream
        finally:
            with self._lock:
                self._streams.discard(stream)
                self._by_peer.subtract(names)
                # Those that have none are forgotten.
                self._by_peer += Counter()

    def _end_stalled(self) -> None:
        while not self._ended.wait(min(1.0, self._send_seconds / _LOOKS_A_LIMIT)):
            limit = time.monotonic() - self._send_seconds
            with self._lock:
                stalled = [stream for stream in self._streams if stream.since < limit]
            for stream in stalled:
                stream.context.cancel()


def _address(peer: str) -> str:
    """The peer without its port: "ipv4:10.0.0.1:4242" -> "ipv4:10.0.0.1"."""
    return peer.rpartition(":")[0] or peer
