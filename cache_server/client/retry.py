"""Retries: which failures are tried again, how long to wait, and what ends an operation.

Waits between attempts grow exponentially with full jitter ("Exponential Backoff And Jitter", AWS
Architecture Blog, 2015) and end before the deadline.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Final

import grpc

from cache_server.client.connection import Replicas
from cache_server.errors import (
    BadReply,
    CallError,
    DeadlineExceeded,
    InvalidRequest,
    ServerFault,
    ServerUnavailable,
)
from cache_server.events import events
from cache_server.wire import LONGEST_HINT_MS, RETRY_AFTER

_FIRST_WAIT_SECONDS: Final = 0.05
_LONGEST_WAIT_SECONDS: Final = 1.0
_SHORTEST_ATTEMPT_SECONDS: Final = 0.002
"""a shorter attempt could not achieve anything"""
_LAST_TURN_SECONDS: Final = 0.05
"""with less time left than this, no other server is asked after a time-out"""
_ALTERED_REPLIES: Final = 3
"""how many replies of one operation may arrive altered before it fails"""
_LONGEST_HINT: Final = 6
"""most digits of a hint; longer ones are ignored"""

_TRANSIENT: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
)
_CANCELLED_BY_SERVER: Final = (
    "the server gave the call up: rows were left unread for its --send-timeout, or for a tenth of "
    "it while other calls found no room, or it is ending"
)
_TOO_LARGE: Final = "larger than max"
"""how grpc reports a message above its size limit, as RESOURCE_EXHAUSTED; a retry would fail too"""
_REFUSALS: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)


def read_hint(error: grpc.RpcError) -> float:
    """Return the seconds after which a server asks to be tried again; 0 = it does not say."""
    metadata = getattr(error, "trailing_metadata", lambda: None)() or ()
    value = next((value for key, value in metadata if key == RETRY_AFTER), "")
    is_number = isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_HINT
    return min(int(value), LONGEST_HINT_MS) / 1000 if is_number else 0.0


class Deadline:
    """The time at which an operation must have ended."""

    def __init__(self, limit_seconds: float, left: float | None = None) -> None:
        self.limit_seconds = limit_seconds
        self._end = time.monotonic() + min(limit_seconds, limit_seconds if left is None else left)

    def remaining(self) -> float:
        """Return the seconds that are left; negative after the deadline."""
        return self._end - time.monotonic()


class RetryPolicy:
    """Decides after each failed attempt of an operation on one server whether to try again."""

    def __init__(
        self,
        server: int,
        address: str,
        operation: str,
        deadline: Deadline,
        stop: threading.Event,
        replicas: Replicas,
    ) -> None:
        self._names_for_errors = (server, address, operation, deadline.limit_seconds)
        self._deadline = deadline
        self._stop = stop
        self.replicas = replicas
        self.connection = replicas.current
        self._failures = self._altered = 0
        self._wait = _FIRST_WAIT_SECONDS
        self._last = ""

    def attempt_seconds(self) -> float:
        """Return the time-out of the next attempt.

        This is the time left until the deadline, or half of it if another server can be asked
        afterwards.
        """
        remaining = self._deadline.remaining()
        if remaining < _SHORTEST_ATTEMPT_SECONDS:
            raise self._expired()
        return remaining / 2 if self.replicas.are_several else remaining

    def reset_wait(self) -> None:
        """Begin with short waits again, since the server has answered something."""
        self._wait = _FIRST_WAIT_SECONDS

    def retry_after_error(self, error: grpc.RpcError) -> None:
        """Wait before the next attempt if the error may be temporary."""
        code, details = error.code(), error.details() or ""
        is_late = code is grpc.StatusCode.DEADLINE_EXCEEDED
        can_fail_over = self.replicas.are_several
        if is_late and not (can_fail_over and self._deadline.remaining() >= _LAST_TURN_SECONDS):
            raise self._expired() from error
        self._check_wanted()
        if (not is_late and code not in _TRANSIENT) or _TOO_LARGE in details:
            error_class = InvalidRequest if code in _REFUSALS else ServerFault
            prefix = "" if error_class is InvalidRequest else f"{code.name}: "
            raise error_class(*self._names_for_errors, f"{prefix}{details}") from error
        if code is grpc.StatusCode.CANCELLED:
            details = _CANCELLED_BY_SERVER
        # The hint is this server's; the next attempt may ask another one.
        self.wait_to_retry(f"{code.name}: {details}", 0.0 if can_fail_over else read_hint(error))

    def retry_after_altered(self, reason: str) -> None:
        """Wait before the next attempt after a reply that was altered on its way."""
        self._altered += 1
        if self._altered > _ALTERED_REPLIES:
            raise self.bad_reply(f"altered on the way {self._altered} times, the last: {reason}")
        self.wait_to_retry(f"altered on the way: {reason}")

    def wait_to_retry(self, reason: str, hint: float = 0.0) -> None:
        """Wait before the next attempt, and switch to another server if there is one."""
        self._failures += 1
        self._last = reason
        server, address, operation, _ = self._names_for_errors
        fields = {"server": server, "address": address, "operation": operation}
        if self.replicas.are_several:
            events.note("failover", f"another server of part {server}: {reason}", **fields)
            self.replicas.fail_over(self.connection)
            self.connection = self.replicas.current
        else:
            events.note("retry", f"feature server {server} is asked again: {reason}", **fields)
        remaining = self._deadline.remaining()
        if remaining < _SHORTEST_ATTEMPT_SECONDS:
            raise self._expired()
        # At most half of the time left, so that another attempt always fits.
        # The jitter need not be unpredictable.
        self._stop.wait(min(hint + random.uniform(0.0, self._wait), remaining / 2))  # noqa: S311
        self._check_wanted()
        self._wait = min(2.0 * self._wait, _LONGEST_WAIT_SECONDS)

    def bad_reply(self, detail: str) -> BadReply:
        """Make the error for a reply that does not fit what was asked."""
        return BadReply(*self._names_for_errors, detail)

    def _check_wanted(self) -> None:
        if self._stop.is_set():
            raise ServerFault(*self._names_for_errors, "given up because another server failed")

    def _expired(self) -> CallError:
        if self._failures:
            detail = f"unavailable in {self._failures} attempts, the last: {self._last}"
            return ServerUnavailable(*self._names_for_errors, detail)
        return DeadlineExceeded(*self._names_for_errors, "not finished within the limit")
