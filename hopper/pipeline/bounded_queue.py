"""A queue from one thread to another, bounded in items and in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The queue is closed."""


class BoundedQueue(Generic[T]):
    """A queue of items with their sizes. There is room for another one while fewer than ``items``
    wait, and at most ``nbytes`` of all of them together."""

    def __init__(self, items: int, nbytes: int) -> None:
        self._items, self._nbytes = items, nbytes
        self._waiting: deque[tuple[T, int]] = deque()
        self._waiting_bytes = 0
        self._error: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()

    def await_room(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until there is room, or until ``unless`` returns True; :class:`Closed` ends it.

        Whoever changes what ``unless`` returns must call :meth:`wake`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or unless() or self._has_room())
            if self._is_closed:
                raise Closed

    def wake(self) -> None:
        """Let waiting threads check their conditions again."""
        with self._changed:
            self._changed.notify_all()

    def put(self, item: T, nbytes: int) -> None:
        """Add an item, after :meth:`await_room`. Does nothing if the queue is closed."""
        with self._changed:
            if not self._is_closed:
                self._waiting.append((item, nbytes))
                self._waiting_bytes += nbytes
                self._changed.notify_all()

    def take(self) -> T:
        """Wait for the next item. If the queue is closed, raise the error that it was closed with,
        or :class:`Closed`, even if items are waiting, since work on them would be wasted."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                raise Closed if self._error is None else self._error
            item, nbytes = self._waiting.popleft()
            self._waiting_bytes -= nbytes
            self._changed.notify_all()
            return item

    def close(self, error: BaseException | None = None) -> None:
        """Drop waiting items, and end all waits. The first error given is what takers get."""
        with self._changed:
            self._is_closed = True
            self._error = self._error or error
            self._waiting.clear()
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._waiting) < self._items and self._waiting_bytes <= self._nbytes
