"""What one thread hands over to the next, bounded in items and in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """Nothing is handed over any more."""


class Pause(Exception):
    """The maker waits for what has been handed over to be used up, or has come to its end."""


class HandOver(Generic[T]):
    """A queue of items with their sizes, from one thread to another.

    An error of the thread that makes items is an item too: who takes it raises it, and it comes
    before whatever is still waiting, so that nothing is done in vain.

    Parameters
    ----------
    items: that wait at most, one at least. nbytes: of all that wait together, unless one alone is
        larger.
    """

    def __init__(self, items: int, nbytes: int) -> None:
        self._items, self._nbytes = items, nbytes
        self._waiting: deque[tuple[T, int]] = deque()
        self._held = 0
        self._error: BaseException | None = None
        self._closed = False
        self._pauses = False
        self._changed = threading.Condition()

    def await_room(self, nbytes: int = 0, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until an item of that size may be put.

        Parameters
        ----------
        unless: what makes it be put without room; :meth:`wake` has to be called where it changes.

        Raises
        ------
        Closed: it never will.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or unless() or self._has_room(nbytes))
            if self._closed:
                raise Closed

    def wake(self) -> None:
        """Let whoever waits look again."""
        with self._changed:
            self._changed.notify_all()

    def allow(self, items: int) -> None:
        """Change how many items wait at most."""
        with self._changed:
            self._items = items
            self._changed.notify_all()

    def put(self, item: T, nbytes: int) -> None:
        """Hand an item over, for which room was awaited; does nothing after the end."""
        with self._changed:
            if self._closed:
                return
            self._pauses = False
            self._waiting.append((item, nbytes))
            self._held += nbytes
            self._changed.notify_all()

    def pause(self) -> None:
        """Say that no item comes before those that were handed over are used up."""
        with self._changed:
            self._pauses = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let the taker raise an error, which keeps its own traceback."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, *, has_others: bool = False) -> T:
        """Wait for the next item.

        Parameters
        ----------
        has_others: whether the taker still has some to use up.

        Raises
        ------
        Closed: none will come. Pause: none will come before others are used up. Whatever the maker
        failed with.
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
            self._held -= nbytes
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Let go of what waits, and of who waits."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._held = 0
            self._changed.notify_all()

    def _has_room(self, nbytes: int) -> bool:
        if not self._waiting:
            return True
        return len(self._waiting) < self._items and self._held + nbytes <= self._nbytes
