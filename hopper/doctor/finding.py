"""Findings, the results of checks, and helpers that run a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from cache_server.errors import CacheServerError
from hopper.errors import HopperError, explain_os_error

State = Literal["fine", "warning", "wrong"]
STATES: Final[tuple[State, ...]] = ("fine", "warning", "wrong")
"""All states, the worst last."""


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
