"""Asking several servers at once, with retries, until every answer has arrived.

Waits between attempts grow exponentially with full jitter ("Exponential Backoff And Jitter", AWS
Architecture Blog, 2015) and end before the deadline.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any, Final

import grpc

from cache_server.client.connection import Replicas
from cache_server.errors import (
    BadReply,
    DeadlineExceeded,
    InvalidRequest,
    ServerFault,
    ServerUnavailable,
)
from cache_server.events import events
from cache_server.pending_call import PendingCall
from cache_server.wire import AlteredChunk, chunk_seeds

_FIRST_WAIT_SECONDS: Final = 0.05
_LONGEST_WAIT_SECONDS: Final = 1.0
_SHORTEST_ATTEMPT_SECONDS: Final = 0.01
"""a shorter attempt could not achieve anything"""
_ALTERED_REPLIES: Final = 3
"""how many replies of one operation may arrive altered before it fails"""
_TRANSIENT: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
_CANCELLED_BY_SERVER: Final = (
    "the server gave the call up: rows were left unread for its --send-timeout, or for a tenth of "
    "it while other calls found no room, or it is ending"
)
_TOO_LARGE: Final = "larger than max"
"""how grpc reports a message above its size limit, as RESOURCE_EXHAUSTED; a retry would fail too"""
_REFUSALS: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)

Task = Callable[[], None]
OnTransfer = Callable[[int, int, int], None]


class Deadline:
    """The time at which an operation must have ended."""

    def __init__(self, limit_seconds: float, left: float | None = None) -> None:
        self.limit_seconds = limit_seconds
        self._end = time.monotonic() + min(limit_seconds, limit_seconds if left is None else left)

    def remaining(self) -> float:
        """Return the seconds that are left; negative after the deadline."""
        return self._end - time.monotonic()


class Operation:
    """Tasks that ask several servers under one deadline. The first failure ends them all."""

    def __init__(self, name: str, deadline: Deadline, pool: futures.Executor) -> None:
        self.name = name
        self.deadline = deadline
        self.stop = threading.Event()
        self._pool = pool
        self._calls: set[Any] = set()
        self._lock = threading.Lock()
        self._pending: list[futures.Future[None]] = []
        self._failures: list[BaseException] = []

    def begin(self, tasks: Sequence[Task]) -> None:
        """Start tasks without waiting for them."""
        self._pending = [self._pool.submit(self._try, task) for task in tasks]

    def finish(self) -> None:
        """Wait for all tasks, and raise the first failure."""
        try:
            futures.wait(self._pending)
        except BaseException:
            self._abandon()
            raise
        if self._failures:
            raise self._failures[0]

    def run(self, tasks: Sequence[Task]) -> None:
        """Run tasks at once, the last one in this thread; raise the first failure."""
        self.begin(tasks[:-1])
        for task in tasks[-1:]:
            self._try(task)
        self.finish()

    @contextmanager
    def cancellable(self, call: Any) -> Iterator[Any]:
        """Let a failure elsewhere cancel a call in the block, and cancel it at the block's end."""
        with self._lock:
            self._calls.add(call)
        try:
            # All calls may have been cancelled just before this one was added.
            if self.stop.is_set():
                call.cancel()
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)
            call.cancel()

    def _try(self, task: Task) -> None:
        """Run a task. If it fails, keep its error and abandon the other tasks."""
        try:
            task()
        except BaseException as error:
            self._failures.append(error)
            self._abandon()

    def _abandon(self) -> None:
        """Cancel running calls and end the waits between attempts."""
        self.stop.set()
        with self._lock:
            for call in self._calls:
                call.cancel()


class Attempts:
    """The attempts of an operation on one server, or on its replicas one after the other."""

    def __init__(self, operation: Operation, server: int, address: str, replicas: Replicas) -> None:
        self._operation, self._deadline = operation, operation.deadline
        self._names_for_errors = (server, address, operation.name, self._deadline.limit_seconds)
        self._server, self._address = server, address
        self._replicas, self._connection = replicas, replicas.current
        self._failures = self._altered = 0
        self._longest_wait = _FIRST_WAIT_SECONDS
        self._last = ""

    def ask(
        self, pending: PendingCall, method: str, ids_per_request: int, on_transfer: OnTransfer
    ) -> None:
        """Send requests until the server has answered all of a call."""
        while pending.done < pending.size:
            start = pending.done
            pending.end = end = pending.end_of_request(start, ids_per_request)
            request = pending.request(start, end)
            timeout = self._attempt_seconds()
            seeds, received = chunk_seeds(request), 0
            try:
                call = self._connection.call(method, request, timeout)
                with self._operation.cancellable(call):
                    for message in call:
                        received += len(message)
                        pending.take(message, next(seeds))
                if pending.done != end:
                    raise ValueError(f"{pending.done - start} of {end - start} rows came")
            except grpc.RpcError as error:
                if pending.done > start:
                    self._longest_wait = _FIRST_WAIT_SECONDS
                self._retry_after(error)
            except AlteredChunk as error:
                # A bad cable or network card may deliver the next attempt intact.
                self._altered += 1
                if self._altered > _ALTERED_REPLIES:
                    raise self.bad_reply(
                        f"altered on the way {self._altered} times, the last: {error}"
                    ) from error
                self._wait(f"altered on the way: {error}")
            except ValueError as error:
                raise self.bad_reply(str(error)) from error
            finally:
                on_transfer(pending.server, len(request), received)

    def ask_once(self, method: str, request: bytes) -> Any:
        """Return the single reply to a request."""
        while True:
            timeout = self._attempt_seconds()
            try:
                return self._connection.call(method, request, timeout)
            except grpc.RpcError as error:
                self._retry_after(error)

    def bad_reply(self, detail: str) -> BadReply:
        """Make the error for a reply that does not fit what was asked."""
        return BadReply(*self._names_for_errors, detail)

    def _attempt_seconds(self) -> float:
        """Return the time left, or half of it if another server can be asked afterwards."""
        self._check_time()
        remaining = self._deadline.remaining()
        return remaining / 2 if self._replicas.are_several else remaining

    def _retry_after(self, error: grpc.RpcError) -> None:
        """Wait before the next attempt if an error may be temporary; raise ours if not."""
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._check_time(needs_replica=True, cause=error)
        self._check_wanted()
        if code not in _TRANSIENT or _TOO_LARGE in details:
            if code in _REFUSALS:
                raise InvalidRequest(*self._names_for_errors, details) from error
            raise ServerFault(*self._names_for_errors, f"{code.name}: {details}") from error
        if code is grpc.StatusCode.CANCELLED:
            details = _CANCELLED_BY_SERVER
        self._wait(f"{code.name}: {details}")

    def _wait(self, reason: str) -> None:
        """Wait before the next attempt, and switch to another server if there is one."""
        self._failures += 1
        self._last = reason
        event, text = "retry", f"feature server {self._server} is asked again: {reason}"
        if self._replicas.are_several:
            event, text = "failover", f"another server of part {self._server}: {reason}"
            self._replicas.fail_over(self._connection)
            self._connection = self._replicas.current
        fields = {"server": self._server, "address": self._address}
        events.note(event, text, **fields, operation=self._operation.name)
        self._check_time()
        # At most half of the time left, so that another attempt always fits.
        # The jitter need not be unpredictable.
        jitter = random.uniform(0.0, self._longest_wait)  # noqa: S311
        self._operation.stop.wait(min(jitter, self._deadline.remaining() / 2))
        self._check_wanted()
        self._longest_wait = min(2.0 * self._longest_wait, _LONGEST_WAIT_SECONDS)

    def _check_wanted(self) -> None:
        if self._operation.stop.is_set():
            detail = "given up because another server failed"
            raise ServerFault(*self._names_for_errors, detail)

    def _check_time(self, needs_replica: bool = False, cause: BaseException | None = None) -> None:
        """Raise an error unless there is time for another attempt."""
        has_time = self._deadline.remaining() >= _SHORTEST_ATTEMPT_SECONDS
        if has_time and (self._replicas.are_several or not needs_replica):
            return
        if self._failures:
            detail = f"unavailable in {self._failures} attempts, the last: {self._last}"
            raise ServerUnavailable(*self._names_for_errors, detail) from cause
        detail = "not finished within the limit"
        raise DeadlineExceeded(*self._names_for_errors, detail) from cause
