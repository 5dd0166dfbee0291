"""What the doctor says, and how it waits: a finding for each thing that was looked at."""

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
"""the worst last"""

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """What was found of one thing.

    Attributes
    ----------
    subject: what was looked at.
    state: "wrong" is what a run would be refused for, or fail by; "warning" what it may fail by, or
        be slow by, and what could not be looked at.
    found: in a line.
    advice: what to do; "" = nothing.
    """

    subject: str
    state: State
    found: str
    advice: str = ""


def fine(subject: str, found: str) -> Finding:
    """A finding that asks for nothing."""
    return Finding(subject, "fine", found)


def warning(subject: str, found: str, advice: str = "") -> Finding:
    """A finding of what may be wrong."""
    return Finding(subject, "warning", found, advice)


def wrong(subject: str, found: object, advice: str = "") -> Finding:
    """A finding of what is wrong.

    Parameters
    ----------
    found: a text, or the error that tells it.
    """
    told = explain_os_error(found, subject) if isinstance(found, OSError) else None
    return Finding(subject, "wrong", " ".join((told or str(found)).split()), advice)


def find_refusal(subject: str, look: Callable[[], object], advice: str = "") -> Finding | None:
    """What a look raises on purpose, or the system refuses it, as a finding; None where it does
    not."""
    try:
        look()
    except (HopperError, CacheServerError, OSError) as error:
        return wrong(subject, error, advice)
    return None


def look_within(seconds: float, look: Callable[[], T]) -> T:
    """The result of a look, or its error. One that takes longer is left to itself.

    Raises
    ------
    TimeoutError: it takes longer; names the limit.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((look(), None))
        except BaseException as error:
            results.put((None, error))

    # A daemon: the process does not wait for it at its end.
    threading.Thread(target=run, name="doctor", daemon=True).start()
    try:
        result, error = results.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # what the look returned
