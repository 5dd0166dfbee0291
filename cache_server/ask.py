"""Asking servers, with retries, until every answer has arrived.

Answers arrive in the order of the ids, so one number per server tells how many are missing. A retry
asks for the missing ones only, and a large question becomes a sequence of requests.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from cache_server.retry import Deadline, Patience
from cache_server.wire import AlteredChunk, ChunkSeeds


class Question(ABC):
    """The ids that one server is asked for, and how many of them it has answered.

    Parameters
    ----------
    server: index of the server, for errors.
    size: how many ids are asked for.

    Attributes
    ----------
    done: how many ids have been answered.
    end: how many will have been answered once the running request is complete.
    """

    def __init__(self, server: int, size: int) -> None:
        self.server = server
        self.size = size
        self.done = 0
        self.end = 0

    def end_of_request(self, start: int, limit: int) -> int:
        """Return the end of a request that begins at id ``start`` and has at most ``limit`` ids."""
        return min(start + limit, self.size)

    @abstractmethod
    def request(self, start: int, end: int) -> bytes:
        """Return the serialised request for ids ``start`` to ``end``."""

    @abstractmethod
    def take(self, message: bytes, seed: int) -> None:
        """Take the next chunk of the reply and add the ids that it answers to :attr:`done`.

        Parameters
        ----------
        seed: the seed of the chunk's checksum.

        Raises
        ------
        AlteredChunk: the chunk was altered on its way.
        ValueError: the chunk does not fit the question, or goes beyond :attr:`end`.
        """


class Operation:
    """Questions to several servers under one deadline. The first failure ends them all.

    Parameters
    ----------
    name: what is asked for, for errors.
    deadline: shared by all questions.
    ids_per_request: the most ids that one request may ask for.
    """

    def __init__(self, name: str, deadline: Deadline, ids_per_request: int) -> None:
        self.name = name
        self.deadline = deadline
        self.stop = threading.Event()
        self._ids_per_request = ids_per_request
        self._calls: set[Any] = set()
        self._lock = threading.Lock()

    def abandon(self) -> None:
        """Cancel running calls and end the waits between attempts."""
        self.stop.set()
        with self._lock:
            for call in self._calls:
                call.cancel()

    def ask(
        self,
        question: Question,
        stub: Callable[..., Any],
        patience: Patience,
        count: Callable[[int, int, int], None],
    ) -> None:
        """Send requests to one server until it has answered the whole question.

        Parameters
        ----------
        stub: the method of the server's channel, which takes and yields bytes.
        patience: decides what follows a failed attempt.
        count: called as (server, bytes sent, bytes received) after every request.

        Raises
        ------
        CallError: as ``patience`` decides.
        """
        while question.done < question.size:
            start = question.done
            question.end = end = question.end_of_request(start, self._ids_per_request)
            request = question.request(start, end)
            timeout = patience.attempt_seconds()
            seeds, received = ChunkSeeds(request), 0
            try:
                with self._cancellable(stub(request, timeout=timeout)) as call:
                    for message in call:
                        received += len(message)
                        question.take(message, seeds.take())
                if question.done != end:
                    raise ValueError(f"{question.done - start} of {end - start} rows came")
            except grpc.RpcError as error:
                if question.done > start:
                    patience.reset_wait()
                patience.retry_after_error(error)
            except AlteredChunk as error:
                # A bad cable or network card may deliver the next attempt intact.
                patience.retry_after_altered(str(error))
            except ValueError as error:
                raise patience.bad_reply(str(error)) from error
            finally:
                count(question.server, len(request), received)

    @contextmanager
    def _cancellable(self, call: Any) -> Iterator[Any]:
        """Let :meth:`abandon` cancel a call during the block, and cancel it at the block's end."""
        with self._lock:
            self._calls.add(call)
        try:
            # ``abandon`` may have cancelled all calls just before this one was added.
            if self.stop.is_set():
                call.cancel()
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)
            call.cancel()


def run_all(
    pool: futures.Executor, tasks: Sequence[Callable[[], None]], abandon: Callable[[], None]
) -> None:
    """Run all tasks at once, the last one in this thread, and wait for them.

    Parameters
    ----------
    abandon: called after every failure; must make the other tasks end soon.

    Raises
    ------
    The first failure of any task.
    """
    if tasks:
        begin_all(pool, tasks[:-1], abandon)(tasks[-1])


def begin_all(
    pool: futures.Executor, tasks: Sequence[Callable[[], None]], abandon: Callable[[], None]
) -> Callable[..., None]:
    """Start all tasks at once without waiting for them.

    Parameters
    ----------
    abandon: as of :func:`run_all`.

    Returns
    -------
    A function that waits for all tasks and raises the first failure of any. If it is called with a
    further task, it runs that one itself before it waits.
    """
    failures: list[BaseException] = []

    def run_recording_failure(task: Callable[[], None]) -> None:
        """Run a task. If it fails, keep its error and abandon the other tasks."""
        try:
            task()
        except BaseException as error:
            failures.append(error)
            abandon()

    pending = [pool.submit(run_recording_failure, task) for task in tasks]

    def finish(last: Callable[[], None] | None = None) -> None:
        """Wait for all tasks, after ``last`` if there is one, and raise the first error."""
        if last is not None:
            run_recording_failure(last)
        try:
            futures.wait(pending)
        except BaseException:
            abandon()
            raise
        if failures:
            raise failures[0]

    return finish
