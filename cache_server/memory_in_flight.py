"""How much memory replies under way and waiting requests may hold together."""

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
"""of a request that waits for a thread: HTTP/2's window, beyond which nothing of it is taken"""
COPIES_OF_REQUEST: Final = 4
"""a request, its ids, the rows that these stand for and what comes up on the way there"""
COPIES_OF_CHUNK: Final = 3
"""a chunk of rows, its message, and gRPC's own copy of that"""
COPIES_OF_DRAW: Final = 8
"""of a message of neighbours: they are drawn in 64 bits, put together, and told in 32"""


class MemoryExhausted(Exception):
    """What is under way holds as much memory as it may."""


def default_memory() -> int:
    """1 GiB, or a quarter of the memory that this process can have, if that is less."""
    return min(_MOST_BY_DEFAULT, max(1, available_memory() // _SHARE_BY_DEFAULT))


class MemoryInFlight:
    """Counts the bytes that replies hold, by who they are for.

    A connection may have a quarter of them, all connections of one address three quarters. One
    reply may have more than that where none other of the same is under way, or it would never be
    answered.

    Parameters
    ----------
    limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pool: CountedPool | None = None
        """whose waiting requests count too"""
        self._lock = threading.Lock()
        self._held = 0
        self._by_peer: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """What is held now."""
        return self._held + self.waiting * WAITING_BYTES

    @property
    def waiting(self) -> int:
        """How many requests wait for a thread."""
        return 0 if self.pool is None else self.pool.waiting

    def check_waiting(self) -> None:
        """Refuse that one more request waits.

        Raises
        ------
        MemoryExhausted: there is no room for it.
        """
        if self._held and self.nbytes + WAITING_BYTES > self.limit:
            raise MemoryExhausted(self._told("all", self.limit))

    def change(self, names: Sequence[str], before: int, after: int, *, asks: bool = True) -> None:
        """Let one reply hold another number of bytes.

        Parameters
        ----------
        names: its connection and address.
        asks: whether it may be refused; otherwise it holds them already.

        Raises
        ------
        MemoryExhausted: they are not to be had; nothing has changed then.
        """
        shares = (self.limit // 4, self.limit // 4 * 3)
        with self._lock:
            if asks and after > before:
                others = self._held - before
                if others and self.nbytes - before + after > self.limit:
                    raise MemoryExhausted(self._told("all", self.limit))
                for name, share in zip(names, shares, strict=True):
                    others = self._by_peer[name] - before
                    if others and others + after > share:
                        raise MemoryExhausted(self._told(name, share))
            self._held += after - before
            for name in names:
                self._by_peer[name] += after - before
                if not self._by_peer[name]:
                    # Those that hold nothing are forgotten.
                    del self._by_peer[name]

    def _told(self, whose: str, limit: int) -> str:
        return f"replies to {whose} may hold {limit:,} bytes of this server's memory, and do"


class CountedPool(futures.ThreadPoolExecutor):
    """Threads, and how much waits for one.

    Attributes
    ----------
    waiting: how many tasks have not begun.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self.waiting = 0
        self._count_lock = threading.Lock()

    def submit(self, task: Any, /, *words: Any, **options: Any) -> futures.Future[Any]:
        """See :class:`concurrent.futures.Executor`."""
        self._count(1)
        try:
            return super().submit(self._begin, task, *words, **options)
        except BaseException:
            self._count(-1)
            raise

    def _begin(self, task: Any, /, *words: Any, **options: Any) -> Any:
        self._count(-1)
        return task(*words, **options)

    def _count(self, change: int) -> None:
        with self._count_lock:
            self.waiting += change
