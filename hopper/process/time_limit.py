"""A time limit for calls that have none of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def finish_within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function within a time limit, and return its result or raise its error.

    A call that takes longer goes on in its thread, and its result is ignored.

    Raises
    ------
    TimeoutError: the call takes longer; names the limit.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except BaseException as error:
            results.put((None, error))

    # A daemon thread, for which the process does not wait at its end.
    threading.Thread(target=run, name="time-limit", daemon=True).start()
    try:
        result, error = results.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # what the call returned
