"""Calls to several servers at once, with retries, until every answer has arrived."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from cache_server.client.retry import Deadline, RetryPolicy
from cache_server.pending_call import PendingCall
from cache_server.wire import AlteredChunk, ChunkSeeds

Task = Callable[[], None]


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

    def finish(self, last: Task | None = None) -> None:
        """Wait for all tasks, after ``last`` in this thread, and raise the first failure."""
        if last is not None:
            self._try(last)
        try:
            futures.wait(self._pending)
        except BaseException:
            self._abandon()
            raise
        if self._failures:
            raise self._failures[0]

    def run(self, tasks: Sequence[Task]) -> None:
        """Run tasks at once, the last one in this thread; raise the first failure."""
        if tasks:
            self.begin(tasks[:-1])
            self.finish(tasks[-1])

    def ask(
        self,
        pending: PendingCall,
        stub: Callable[..., Any],
        retry: RetryPolicy,
        limit: int,
        count: Callable[[int, int, int], None],
    ) -> None:
        """Send requests to one server until it has answered the whole call."""
        while pending.done < pending.size:
            start = pending.done
            pending.end = end = pending.end_of_request(start, limit)
            request = pending.request(start, end)
            timeout = retry.attempt_seconds()
            seeds, received = ChunkSeeds(request), 0
            try:
                with self._cancellable(stub(request, timeout=timeout)) as call:
                    for message in call:
                        received += len(message)
                        pending.take(message, seeds.take())
                if pending.done != end:
                    raise ValueError(f"{pending.done - start} of {end - start} rows came")
            except grpc.RpcError as error:
                if pending.done > start:
                    retry.reset_wait()
                retry.retry_after_error(error)
            except AlteredChunk as error:
                # A bad cable or network card may deliver the next attempt intact.
                retry.retry_after_altered(str(error))
            except ValueError as error:
                raise retry.bad_reply(str(error)) from error
            finally:
                count(pending.server, len(request), received)

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

    @contextmanager
    def _cancellable(self, call: Any) -> Iterator[Any]:
        """Let :meth:`_abandon` cancel a call during the block, and cancel it at the block's end."""
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
