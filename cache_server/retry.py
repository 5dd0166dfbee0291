"""One call's patience: which failures are tried again, how long to wait, and what ends it.

Waits grow exponentially with full jitter between attempts ("Exponential Backoff And Jitter", AWS
Architecture Blog, 2015) and never beyond the call's deadline.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

import grpc

from cache_server.errors import (
    BadReply,
    CallError,
    DeadlineExceeded,
    InvalidRequest,
    ServerFault,
    ServerUnavailable,
)
from cache_server.events import events

FIRST_WAIT_SECONDS: Final = 0.05
LONGEST_WAIT_SECONDS: Final = 1.0
# Below this an attempt could not do anything useful any more.
_SHORTEST_ATTEMPT_SECONDS: Final = 0.002

_LAST_TURN_SECONDS: Final = 0.05
"""left of a deadline: another server is asked no more"""
_ALTERED_REPLIES: Final = 3
"""how often rows of one fetch may arrive altered, before that is no accident"""

RETRY_AFTER: Final = "retry-after-ms"
"""trailing metadata of a refusal: when it is worth while to ask again"""
_FIRST_HINT_MS, _LONGEST_HINT_MS = 50, 2000
_LONGEST_HINT: Final = 6
"""digits that are read"""

_TRANSIENT: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


# A message above a limit is above it the next time, too; grpc calls that a want of resources.
_TOO_LARGE: Final = "larger than max"
_REFUSALS: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)


def retry_hint(waiting: int) -> tuple[tuple[str, str], ...]:
    """What a refusal for want of room carries: the longer, the more requests wait already."""
    return ((RETRY_AFTER, str(min(_LONGEST_HINT_MS, _FIRST_HINT_MS + waiting))),)


def read_hint(error: grpc.RpcError) -> float:
    """Seconds that a server asks to be left alone for; 0 = it does not say."""
    told = getattr(error, "trailing_metadata", lambda: None)() or ()
    value = next((value for key, value in told if key == RETRY_AFTER), "")
    is_number = isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_HINT
    return min(int(value), _LONGEST_HINT_MS) / 1000 if is_number else 0.0


class Deadline:
    """A point in time, ``limit_seconds`` after its making, or ``left`` where that is sooner: of an
    operation that has begun before."""

    def __init__(self, limit_seconds: float, left: float | None = None) -> None:
        self.limit_seconds = limit_seconds
        self._end = time.monotonic() + min(limit_seconds, limit_seconds if left is None else left)

    def remaining(self) -> float:
        """Seconds left; negative once passed."""
        return self._end - time.monotonic()


class Patience:
    """Decides after each failed attempt of one operation on one server what comes next.

    Parameters
    ----------
    server, address, operation: named by every error.
    deadline: shared by all attempts.
    stop: set when the operation is no longer wanted; ends a wait at once.
    turn: lets the next attempt ask another server that answers the same; None = there is none.
    """

    def __init__(
        self,
        server: int,
        address: str,
        operation: str,
        deadline: Deadline,
        stop: threading.Event,
        turn: Callable[[], None] | None = None,
    ) -> None:
        self._named = (server, address, operation, deadline.limit_seconds)
        self._deadline = deadline
        self._stop = stop
        self._turn = turn
        self._failures = 0
        self._altered = 0
        self._wait = FIRST_WAIT_SECONDS
        self._last = ""

    def attempt_seconds(self) -> float:
        """The time-out of the next attempt: whatever is left of the deadline, or half of it where
        another server can be asked after that."""
        left = self._deadline.remaining()
        if left < _SHORTEST_ATTEMPT_SECONDS:
            raise self._expired()
        return left if self._turn is None else left / 2

    def progressed(self) -> None:
        """Start the waits anew: the server has answered something."""
        self._wait = FIRST_WAIT_SECONDS

    def failed(self, error: grpc.RpcError) -> None:
        """Wait before the next attempt, or raise the :class:`CallError` that ends the operation."""
        code = error.code()
        is_late = code is grpc.StatusCode.DEADLINE_EXCEEDED
        if is_late and (self._turn is None or self._deadline.remaining() < _LAST_TURN_SECONDS):
            raise self._expired() from error
        self._check_wanted()
        if (not is_late and code not in _TRANSIENT) or _TOO_LARGE in (error.details() or ""):
            kind = InvalidRequest if code in _REFUSALS else ServerFault
            prefix = "" if kind is InvalidRequest else f"{code.name}: "
            raise kind(*self._named, f"{prefix}{error.details()}") from error
        # Another server that is asked instead has not said so.
        hint = read_hint(error) if self._turn is None else 0.0
        self.missed(f"{code.name}: {error.details()}", hint)

    def altered(self, reason: str) -> None:
        """Wait before the next attempt, since what came was altered on its way.

        Raises
        ------
        BadReply: that happens again and again.
        """
        self._altered += 1
        if self._altered > _ALTERED_REPLIES:
            raise self.bad_reply(f"altered on the way {self._altered} times, the last: {reason}")
        self.missed(f"altered on the way: {reason}")

    def missed(self, reason: str, hint: float = 0.0) -> None:
        """Wait before the next attempt because of ``reason``, unless the time is used up.

        Parameters
        ----------
        hint: seconds that the server asks for; the wait is no shorter, as far as the time goes.
        """
        self._failures += 1
        self._last = reason
        server, address, operation, _ = self._named
        named = {"server": server, "address": address, "operation": operation}
        if self._turn is None:
            events.note("retry", f"feature server {server} is asked again: {reason}", **named)
        else:
            events.note("failover", f"another server of part {server}: {reason}", **named)
            self._turn()
        left = self._deadline.remaining()
        if left < _SHORTEST_ATTEMPT_SECONDS:
            raise self._expired()
        # Half of what is left, so that one more attempt always fits in.
        # How long is no secret.
        self._stop.wait(min(hint + random.uniform(0.0, self._wait), left / 2))  # nosec B311
        self._check_wanted()
        self._wait = min(2.0 * self._wait, LONGEST_WAIT_SECONDS)

    def bad_reply(self, detail: str) -> BadReply:
        """The error for a reply that does not fit the question."""
        return BadReply(*self._named, detail)

    def _check_wanted(self) -> None:
        if self._stop.is_set():
            raise ServerFault(*self._named, "given up because another server failed")

    def _expired(self) -> CallError:
        if self._failures:
            detail = f"unavailable in {self._failures} attempts, the last: {self._last}"
            return ServerUnavailable(*self._named, detail)
        return DeadlineExceeded(*self._named, "not finished within the limit")
