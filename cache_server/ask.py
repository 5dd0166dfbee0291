"""Asking servers until all that was asked for is there.

What is asked for arrives in order, so "what is still missing" is a single number per server; that
is what makes a retry cheap and a large question a sequence of requests.
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
    """What one server is asked for, and how much of it has arrived.

    Parameters
    ----------
    server: index, for errors.
    size: how many ids are asked for.

    Attributes
    ----------
    done, end: how many have been answered, and will be when the request under way is.
    """

    def __init__(self, server: int, size: int) -> None:
        self.server = server
        self.size = size
        self.done = 0
        self.end = 0

    def end_of_request(self, start: int, limit: int) -> int:
        """Up to which id a request from ``start`` on asks, where that many may be asked for."""
        return min(start + limit, self.size)

    @abstractmethod
    def request(self, start: int, end: int) -> bytes:
        """The serialised request for some of the ids."""

    @abstractmethod
    def take(self, message: bytes, seed: int) -> None:
        """Take the next chunk of the reply, and count what it answers in :attr:`done`.

        Raises
        ------
        AlteredChunk: it is not what was sent.
        ValueError: it does not fit the question, or goes beyond :attr:`end`.
        """


class Operation:
    """Questions to several servers under one deadline; the first failure ends them all.

    Parameters
    ----------
    name: for errors.
    deadline: for all questions together.
    ids_per_request: the most ids that one request asks for.
    """

    def __init__(self, name: str, deadline: Deadline, ids_per_request: int) -> None:
        self.name = name
        self.deadline = deadline
        self.stop = threading.Event()
        self._ids_per_request = ids_per_request
        self._calls: set[Any] = set()
        self._lock = threading.Lock()

    def abandon(self) -> None:
        """Cancel the calls that run and end the waits between attempts."""
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
        """Ask a server until all that is asked for is there.

        Parameters
        ----------
        stub: the method of the server's channel, bytes in and bytes out.
        patience: decides about failed attempts.
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
                with self._watched(stub(request, timeout=timeout)) as call:
                    for message in call:
                        received += len(message)
                        question.take(message, seeds.take())
                if question.done != end:
                    raise ValueError(f"{question.done - start} of {end - start} rows came")
            except grpc.RpcError as error:
                if question.done > start:
                    patience.progressed()
                patience.failed(error)
            except AlteredChunk as error:
                # What a network card or a cable does once it need not do again.
                patience.altered(str(error))
            except ValueError as error:
                raise patience.bad_reply(str(error)) from error
            finally:
                count(question.server, len(request), received)

    @contextmanager
    def _watched(self, call: Any) -> Iterator[Any]:
        """``call``, cancelled by :meth:`abandon` and on the way out if it still runs."""
        with self._lock:
            self._calls.add(call)
        try:
            # ``abandon`` may have gone through the calls just before this one was added.
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
    """Run all tasks at once, the last one in this thread; raise the failure that came first.

    ``abandon`` is called on every failure and has to bring the other tasks to their end.
    """
    if tasks:
        begin_all(pool, tasks[:-1], abandon)(tasks[-1])


def begin_all(
    pool: futures.Executor, tasks: Sequence[Callable[[], None]], abandon: Callable[[], None]
) -> Callable[..., None]:
    """Begin all tasks at once.

    Returns
    -------
    What waits for them, and then raises the failure that came first; it runs a task that it is
    called with meanwhile. ``abandon`` as of :func:`run_all`.
    """
    failures: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            failures.append(error)
            abandon()

    pending = [pool.submit(guarded, task) for task in tasks]

    def finish(last: Callable[[], None] | None = None) -> None:
        if last is not None:
            guarded(last)
        try:
            futures.wait(pending)
        except BaseException:
            abandon()
            raise
        if failures:
            raise failures[0]

    return finish
