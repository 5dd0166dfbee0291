"""Findings, the results of checks, and helpers that run a check."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from cache_server.errors import CacheServerError
from hopper.errors import HopperError, explain_os_error

State = Literal["fine", "warning", "wrong"]
STATES: Final[tuple[State, ...]] = ("fine", "warning", "wrong")
"""All states, the worst last."""

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    subject: what was checked.
    state: "wrong" if a run would be refused or fail; "warning" if it may fail or be slow, or if the
        check was not possible.
    found: the result in a line.
    advice: what to do; "" = nothing.
    """

    subject: str
    state: State
    found: str
    advice: str = ""


def fine(subject: str, text: str) -> Finding:
    """Make a finding that needs no action."""
    return Finding(subject, "fine", text)


def warning(subject: str, text: str, advice: str = "") -> Finding:
    """Make a finding of something that may be wrong."""
    return Finding(subject, "warning", text, advice)


def wrong(subject: str, problem: object, advice: str = "") -> Finding:
    """Make a finding of something that is wrong.

    Parameters
    ----------
    problem: a text or an error.
    """
    text = explain_os_error(problem, subject) if isinstance(problem, OSError) else None
    return Finding(subject, "wrong", " ".join((text or str(problem)).split()), advice)


def find_refusal(subject: str, look: Callable[[], object], advice: str = "") -> Finding | None:
    """Run a check; turn an error of Hopper or the system into a finding, or return None."""
    try:
        look()
    except (HopperError, CacheServerError, OSError) as error:
        return wrong(subject, error, advice)
    return None


def look_within(seconds: float, look: Callable[[], T]) -> T:
    """Run a check within a time limit, and return its result or raise its error.

    A check that takes longer goes on in its thread, and its result is ignored.

    Raises
    ------
    TimeoutError: the check takes longer; names the limit.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((look(), None))
        except BaseException as error:
            results.put((None, error))

    # A daemon thread, for which the process does not wait at its end.
    threading.Thread(target=run, name="doctor", daemon=True).start()
    try:
        result, error = results.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # what the look returned
