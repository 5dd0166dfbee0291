"""Connections to servers, and asking several at once until every answer has arrived.

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
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc.experimental import ChannelOptions

from cache_server.client.calls import PendingCall
from cache_server.errors import (
    BadReply,
    BadRequest,
    CallError,
    DeadlineExceeded,
    InvalidRequest,
    ServerFault,
    ServerUnavailable,
)
from cache_server.events import events
from cache_server.security import Security
from cache_server.wire import METHODS, PART_HEADER, AlteredChunk, chunk_seeds

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The user names the servers, so a proxy that is configured for the web must not be used.
    ("grpc.enable_http_proxy", 0),
    # A restarted server must be reachable again within a retry or two.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # gRPC gives up connecting after this time, and TLS over a slow link or a busy machine needs it.
    ("grpc.min_reconnect_backoff_ms", 2000),
    # The thread that reads a stream also drives it, which saves a thread per call.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)
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

OnTransfer = Callable[[int, int, int], None]


class Connection:
    """The methods of one server. Safe to use from several threads."""

    def __init__(self, address: str, security: Security, part: str = "") -> None:
        token, credentials = security.token(), security.channel_credentials()
        self._metadata: tuple[tuple[str, str], ...] = ((PART_HEADER, part),) if part else ()
        if token is not None:
            self._metadata += token.metadata()
        if credentials is None:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, _OPTIONS)
        # Without serialisers grpc passes bytes through unchanged. A single reply is a stream too.
        self._methods = {method: self._channel.unary_stream(method) for method in METHODS}

    def call(self, method: str, request: bytes, timeout: float) -> Any:
        """Call a method with a serialised request: returns a call to iterate over."""
        try:
            return self._methods[method](request, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            # grpc raises this for a channel that is closed.
            raise BadRequest("the client is closed") from error

    def close(self) -> None:
        """Close the channel and cancel its running calls."""
        self._channel.close()


class Links:
    """A process's connections to the servers of each part, and the threads that wait for them."""

    def __init__(self, addresses: Sequence[str], replicas: Sequence[list[Connection]]) -> None:
        self.addresses, self.replicas = addresses, replicas
        self.pool = futures.ThreadPoolExecutor(max(4, 2 * len(replicas)), "feature-client")
        self.one_transfer = threading.Lock()

    def close(self) -> None:
        """Cancel running calls, close all connections and end the threads."""
        for connections in self.replicas:
            for connection in connections:
                connection.close()
        self.pool.shutdown()


class Deadline:
    """The time at which an operation must have ended."""

    def __init__(self, limit_seconds: float, left: float | None = None) -> None:
        self.limit_seconds = limit_seconds
        self._end = time.monotonic() + min(limit_seconds, limit_seconds if left is None else left)

    def remaining(self) -> float:
        """Return the seconds that are left; negative after the deadline."""
        return self._end - time.monotonic()


@dataclass
class Operation:
    """Calls of several servers under one deadline. The first failure ends them all."""

    name: str
    method: str
    calls: Sequence[PendingCall]
    links: Links
    deadline: Deadline
    ids_limit: int
    """most ids in a request"""
    on_transfer: OnTransfer | None = None

    def __post_init__(self) -> None:
        self.stop = threading.Event()
        # A call without ids has been answered.
        self._attempts = [Attempts(self, call) for call in self.calls if call.size]
        self._running: set[Any] = set()
        self._pending: list[futures.Future[None]] = []
        self._failures: list[BaseException] = []

    def begin(self, left: int = 0) -> None:
        """Start all calls but the last ``left`` ones, without waiting for them."""
        started = self._attempts[: max(0, len(self._attempts) - left)]
        self._pending = [self.links.pool.submit(self._try, one) for one in started]

    def finish(self) -> None:
        """Wait for all calls, and raise the first failure."""
        try:
            futures.wait(self._pending)
        except BaseException:
            self._abandon()
            raise
        finally:
            # They refer to this operation, and would keep the rows until cycles are collected.
            self._attempts.clear()
        if self._failures:
            raise self._failures[0]

    def run(self) -> None:
        """Make all calls at once, the last one in this thread; raise the first failure."""
        self.begin(1)
        for one in self._attempts[-1:]:
            self._try(one)
        self.finish()

    def count(self, server: int, sent: int, received: int) -> None:
        """Tell the bytes of a request and its reply, from one thread at a time."""
        if self.on_transfer is not None:
            with self.links.one_transfer:
                self.on_transfer(server, sent, received)

    @contextmanager
    def cancellable(self, call: Any) -> Iterator[Any]:
        """Let a failure elsewhere cancel a call in the block, and cancel it at the block's end."""
        self._running.add(call)
        try:
            # All calls may have been cancelled just before this one was added.
            if self.stop.is_set():
                call.cancel()
            yield call
        finally:
            self._running.discard(call)
            call.cancel()

    def _try(self, attempts: Attempts) -> None:
        """Make a call. If it fails, keep its error and abandon the others."""
        try:
            attempts.run()
        except BaseException as error:
            self._failures.append(error)
            self._abandon()

    def _abandon(self) -> None:
        self.stop.set()
        for call in list(self._running):
            call.cancel()


class Attempts:
    """The attempts of a call of one server, or of its replicas one after the other.

    The first of the replicas is asked; one that fails moves to the end, for all calls of a client.
    """

    def __init__(self, operation: Operation, call: PendingCall) -> None:
        self._operation, self._deadline = operation, operation.deadline
        self._call, self._server, links = call, call.server, operation.links
        self._address, self._replicas = links.addresses[call.server], links.replicas[call.server]
        self._connection = self._replicas[0]
        self._failures = self._altered = 0
        self._longest_wait = _FIRST_WAIT_SECONDS
        self._last = ""

    def run(self) -> None:
        """Send requests until the server has answered all of the call."""
        call, operation = self._call, self._operation
        while call.done < call.size:
            start = call.done
            call.end = end = call.end_of_request(start, operation.ids_limit)
            request = call.request(start, end)
            self._check_time()
            # Half of the time that is left if another server can be asked afterwards.
            timeout = self._deadline.remaining() / min(2, len(self._replicas))
            seeds, received = chunk_seeds(request), 0
            try:
                messages = self._connection.call(operation.method, request, timeout)
                with operation.cancellable(messages):
                    for message in messages:
                        received += len(message)
                        call.take(message, next(seeds))
                if call.done != end:
                    raise ValueError(f"{call.done - start} of {end - start} rows came")
            except grpc.RpcError as error:
                if call.done > start:
                    self._longest_wait = _FIRST_WAIT_SECONDS
                self._retry_after(error)
            except AlteredChunk as error:
                # A bad cable or network card may deliver the next attempt intact.
                self._altered += 1
                if self._altered > _ALTERED_REPLIES:
                    text = f"altered on the way {self._altered} times, the last: {error}"
                    raise self._error(BadReply, text) from error
                self._wait(f"altered on the way: {error}")
            except ValueError as error:
                raise self._error(BadReply, str(error)) from error
            finally:
                operation.count(self._server, len(request), received)

    def _retry_after(self, error: grpc.RpcError) -> None:
        """Wait before the next attempt if an error may be temporary; raise ours if not."""
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and len(self._replicas) == 1:
            raise self._too_late() from error
        self._check_wanted()
        if code not in _TRANSIENT or _TOO_LARGE in details:
            if code in _REFUSALS:
                raise self._error(InvalidRequest, details) from error
            raise self._error(ServerFault, f"{code.name}: {details}") from error
        if code is grpc.StatusCode.CANCELLED:
            details = _CANCELLED_BY_SERVER
        self._wait(f"{code.name}: {details}")

    def _wait(self, reason: str) -> None:
        """Wait before the next attempt, and switch to another server if there is one."""
        self._failures += 1
        self._last = reason
        event, text = "retry", f"feature server {self._server} is asked again: {reason}"
        if len(self._replicas) > 1:
            event, text = "failover", f"another server of part {self._server}: {reason}"
            # Calls that fail on it at once all find the same order, and make the same of it.
            order = list(self._replicas)
            if order[0] is self._connection:
                self._replicas[:] = order[1:] + order[:1]
            self._connection = self._replicas[0]
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
            raise self._error(ServerFault, "given up because another server failed")

    def _check_time(self) -> None:
        if self._deadline.remaining() < _SHORTEST_ATTEMPT_SECONDS:
            raise self._too_late()

    def _too_late(self) -> CallError:
        if self._failures:
            detail = f"unavailable in {self._failures} attempts, the last: {self._last}"
            return self._error(ServerUnavailable, detail)
        return self._error(DeadlineExceeded, "not finished within the limit")

    def _error(self, kind: type[CallError], detail: str) -> CallError:
        limit = self._deadline.limit_seconds
        return kind(self._server, self._address, self._operation.name, limit, detail)
