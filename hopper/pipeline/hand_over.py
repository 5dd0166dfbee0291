"""A queue from one thread to another, bounded in items and in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The queue is closed."""


class Pause(Exception):
    """No item will come until the taker has used up earlier ones."""


class HandOver(Generic[T]):
    """A bounded queue of items with their sizes, from one thread to another.

    If the thread that makes items fails, the next :meth:`take` raises its error. It does so even if
    items are waiting, since work on them would be wasted.

    Parameters
    ----------
    items: most items that wait; at least 1.
    nbytes: most bytes of all waiting items together. A single item may be larger.
    """

    def __init__(self, items: int, nbytes: int) -> None:
        self._items, self._nbytes = items, nbytes
        self._waiting: deque[tuple[T, int]] = deque()
        self._waiting_bytes = 0
        self._error: BaseException | None = None
        self._closed = False
        self._pauses = False
        self._changed = threading.Condition()

    def await_room(self, nbytes: int = 0, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until an item of ``nbytes`` fits.

        Parameters
        ----------
        unless: ends the wait as soon as it returns True. Whoever changes its result must call
            :meth:`wake`.

        Raises
        ------
        Closed: the queue is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or unless() or self._has_room(nbytes))
            if self._closed:
                raise Closed

    def wake(self) -> None:
        """Let waiting threads check their conditions again."""
        with self._changed:
            self._changed.notify_all()

    def put(self, item: T, nbytes: int) -> None:
        """Add an item, after :meth:`await_room`. Does nothing if the queue is closed."""
        with self._changed:
            if self._closed:
                return
            self._pauses = False
            self._waiting.append((item, nbytes))
            self._waiting_bytes += nbytes
            self._changed.notify_all()

    def pause(self) -> None:
        """Tell the taker that no item will come until it has used up earlier ones."""
        with self._changed:
            self._pauses = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let the taker raise an error, with the traceback of this thread."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, *, has_others: bool = False) -> T:
        """Wait for the next item.

        Parameters
        ----------
        has_others: whether the taker has earlier items that are not used up.

        Raises
        ------
        Closed: the queue is closed.
        Pause: no item will come until earlier ones are used up.
        The error that :meth:`fail` was called with.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._waiting or self._error or self._closed or (has_others and self._pauses)
                )
            )
            if self._error is not None:
                raise self._error
            if self._closed:
                raise Closed
            if not self._waiting:
                raise Pause
            item, nbytes = self._waiting.popleft()
            self._waiting_bytes -= nbytes
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Drop waiting items, and end all waits."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def _has_room(self, nbytes: int) -> bool:
        if not self._waiting:
            return True
        return len(self._waiting) < self._items and self._waiting_bytes + nbytes <= self._nbytes
