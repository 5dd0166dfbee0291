"""A time limit for calls that have none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def finish_within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function within a time limit, and return its result or raise its error.

    A call that takes longer goes on in its thread, and its result is ignored.

    Raises
    ------
    TimeoutError: the call takes longer; names the limit.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    # A daemon thread, for which the process does not wait at its end.
    threading.Thread(target=run, name="time-limit", daemon=True).start()
    if not wait([answer], max(0.0, seconds)).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()
