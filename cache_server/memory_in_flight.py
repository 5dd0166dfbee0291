"""The limit of the memory that running replies and waiting requests may hold together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent import futures
from typing import Any, Final

from cache_server.available_memory import available_memory

_MOST_BY_DEFAULT: Final = 1 << 30
_SHARE_BY_DEFAULT: Final = 4
WAITING_BYTES: Final = 1 << 16
"""what a request that waits for a thread holds: at most HTTP/2's window is received of it"""
COPIES_OF_REQUEST: Final = 4
"""a request, its ids, their rows, and temporaries of the conversion"""
COPIES_OF_CHUNK: Final = 3
"""a chunk of rows, its message, and gRPC's copy of the message"""
COPIES_OF_DRAW: Final = 8
"""times the size of a message of neighbours: draws are in 64 bits and joined, messages in 32"""


class NoRoom(Exception):
    """A client, or all of them together, already have the replies or the memory that they may have.

    Attributes
    ----------
    client: name of the client's connection or address; "" = all clients together.
    """

    def __init__(self, client: str, text: str) -> None:
        super().__init__(text)
        self.client = client


def default_memory() -> int:
    """Return the default limit: 1 GiB, or a quarter of the available memory if that is less."""
    return min(_MOST_BY_DEFAULT, max(1, available_memory() // _SHARE_BY_DEFAULT))


class MemoryInFlight:
    """Counts the bytes that replies hold, in all and for each client.

    A connection may hold a quarter of the limit, and all connections of one address three quarters.
    A single reply may exceed its share if it is the only one, since it could never be sent
    otherwise.

    Parameters
    ----------
    limit: bytes.

    Attributes
    ----------
    pool: the threads whose waiting requests count too; None = no requests wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pool: CountedPool | None = None
        self._lock = threading.Lock()
        self._held = 0
        self._by_peer: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """The bytes that replies and waiting requests hold now."""
        return self._held + self.waiting * WAITING_BYTES

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a thread."""
        return 0 if self.pool is None else self.pool.waiting

    def check_waiting(self) -> None:
        """Check that one more request may wait.

        Raises
        ------
        NoRoom: it would exceed the limit.
        """
        if self._held and self.nbytes + WAITING_BYTES > self.limit:
            raise _no_memory("", self.limit)

    def change(self, names: Sequence[str], before: int, after: int, *, asks: bool = True) -> None:
        """Change the number of bytes that one reply holds.

        Parameters
        ----------
        names: the connection and address of its client.
        before, after: bytes.
        asks: False if the reply holds the bytes already, so that it cannot be refused.

        Raises
        ------
        NoRoom: the change would exceed a limit. Nothing has changed then.
        """
        shares = (self.limit // 4, self.limit // 4 * 3)
        with self._lock:
            if asks and after > before:
                others = self._held - before
                if others and self.nbytes - before + after > self.limit:
                    raise _no_memory("", self.limit)
                for name, share in zip(names, shares, strict=True):
                    others = self._by_peer[name] - before
                    if others and others + after > share:
                        raise _no_memory(name, share)
            self._held += after - before
            for name in names:
                self._by_peer[name] += after - before
                if not self._by_peer[name]:
                    # Clients that hold nothing are removed, or the dictionary would grow forever.
                    del self._by_peer[name]


def _no_memory(client: str, limit: int) -> NoRoom:
    whose = client or "all"
    text = f"replies to {whose} may hold {limit:,} bytes of this server's memory, and do"
    return NoRoom(client, text)


class CountedPool(futures.ThreadPoolExecutor):
    """A thread pool that counts waiting tasks.

    Attributes
    ----------
    waiting: the number of tasks that have not begun.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self.waiting = 0
        self._count_lock = threading.Lock()

    def submit(self, task: Any, /, *arguments: Any, **options: Any) -> futures.Future[Any]:
        """Submit a task, and count it as waiting until it begins."""
        self._count(1)
        try:
            return super().submit(self._begin, task, *arguments, **options)
        except BaseException:
            self._count(-1)
            raise

    def _begin(self, task: Any, /, *arguments: Any, **options: Any) -> Any:
        self._count(-1)
        return task(*arguments, **options)

    def _count(self, change: int) -> None:
        with self._count_lock:
            self.waiting += change
