"""Prepares the iterations of a run ahead of what consumes them (DistDGLv2, section 4.2).

The schedule of roots and the draws are functions of seed, epoch and iteration, so training does not
affect what later iterations read. Stages may therefore run ahead, each in a thread of its own, and
whoever consumes their items gets the same ones, bit for bit, with and without threads.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

import numba
import torch

from hopper.errors import RequestError
from hopper.pipeline.bounded_queue import BoundedQueue, Closed

T = TypeVar("T")
_UNLIMITED: Final = sys.maxsize
_END: Final = object()
"""follows the last item of a stage"""


class Moment(NamedTuple):
    """An iteration of a run."""

    epoch: int
    iteration: int


@dataclass(frozen=True)
class Stage:
    """A step in which items are prepared, in a thread of its own.

    Attributes
    ----------
    name: of the thread.
    work: makes an item of the one before it. The first stage is given a :class:`Moment`, which is
        a tuple (epoch, iteration).
    items, nbytes: the stage goes on while fewer than ``items`` of its results wait, and at most
        ``nbytes`` of all of them together. So one more may be in memory, and one is being made.
    size: returns the bytes of a result.
    reach: how many of the following items are made known to ``foresee`` before an item is worked
        on. Only the second stage may have such a window.
    foresee: called with the items that come into reach, in their order.
    """

    name: str
    work: Callable[[Any], Any]
    items: int = 5
    nbytes: int = 1 << 30
    size: Callable[[Any], int] = lambda _: 0
    reach: int = 0
    foresee: Callable[[Sequence[Any]], None] = lambda _: None


class Pipeline(Generic[T]):
    """The items that stages make of the iterations of some epochs, one after the other.

    A ``for`` loop over it goes through what is left of an epoch. The stages go on meanwhile, and
    beyond its end. It is a context manager, which ends the threads. An error of a stage is raised
    where the next item is taken, with its own traceback. Items that wait are dropped then.

    Parameters
    ----------
    stages: from an iteration to the item that is handed out.
    iterations, epochs: their numbers. All epochs have equally many iterations.
    start: epoch and iteration of the first item.
    ahead: whether stages run in threads. If not, an item is made when it is taken.
    agree: if ranks exchange messages in the first stage: called by every rank, with the number of
        items that its first stage has begun and the operation's name, it returns the largest number
        of any rank.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        iterations: int,
        epochs: int = 1,
        *,
        start: tuple[int, int] = (0, 0),
        ahead: bool = True,
        agree: Callable[[int, str], int] | None = None,
    ) -> None:
        if iterations < 1:
            raise RequestError(f"pipeline: expected an iteration an epoch at least, {iterations=}")
        self._stages, self._ahead, self._agree = stages, ahead, agree if ahead else None
        self._iterations, self._stop = iterations, iterations * epochs
        self._next = start[0] * iterations + start[1]
        """number of the next item to hand out, counted from the first iteration of epoch 0"""
        self._queues: list[BoundedQueue[Any]] = [
            BoundedQueue(stage.items, stage.nbytes) for stage in stages
        ]
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._begun, self._most, self._is_closed = 0, _UNLIMITED, False
        """how many items the first stage has begun, and may begin in all"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Close the pipeline. After an error its threads end by themselves: they may wait for a
        server or a rank that is lost, which must not delay the error."""
        if error_type is None:
            self.close()
        else:
            self._cancel()

    def __iter__(self) -> Iterator[T]:
        """Hand out what is left of an epoch."""
        end = (self._next // self._iterations + 1) * self._iterations
        while self._next < min(end, self._stop):
            yield self.take()

    @property
    def is_over(self) -> bool:
        """Whether all items have been handed out."""
        return self._next >= self._stop

    def take(self) -> T:
        """Hand out the next item, or raise the error of preparing it or a later one.

        Raises
        ------
        IndexError: there is none.
        """
        if self.is_over:
            raise IndexError("the pipeline has handed out all of its items")
        if self._ahead:
            self._start()
            item = self._queues[-1].take()
        else:
            item = self._moment(self._next)
            for stage in self._stages:
                item = stage.work(item)
        self._next += 1
        taken: T = item
        return taken

    def state_dict(self) -> dict[str, int]:
        """Return where the pipeline stands. What was handed out counts, what was prepared does
        not."""
        return {**self._moment(self._next)._asdict(), "iterations": self._iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another pipeline of the same iterations stood.

        Raises
        ------
        RequestError: the state is not one of this pipeline's, or an item was taken already.
        """
        if self._threads or self._is_closed:
            raise RequestError("pipeline: load_state_dict must come before the first item is taken")
        numbers = [state.get(name) for name in ("epoch", "iteration", "iterations")]
        epoch, iteration, iterations = (n if isinstance(n, int) else -1 for n in numbers)
        if iterations != self._iterations or not 0 <= iteration < iterations or epoch < 0:
            raise RequestError(
                f"pipeline: expected the state of epochs of {self._iterations} iterations, "
                f"given {dict(state)!s:.200}"
            )
        self._next = epoch * iterations + iteration

    def close(self) -> None:
        """End the threads, and wait until they have ended. Every rank must call it."""
        self._stop_beginning("ending the pipeline")
        self._cancel(agreed=True)
        for thread in self._threads:
            thread.join()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Begin no items during the block, which may take long. Every rank must call it.

        It matters only where ranks exchange messages in the first stage. A rank might else wait for
        an item that another one does not begin, since each has room for as many as fit.
        """
        self._stop_beginning("resting the pipeline")
        yield
        if self._agree is not None:
            self._begin_up_to(_UNLIMITED)

    def _moment(self, number: int) -> Moment:
        return Moment(*divmod(number, self._iterations))

    def _stop_beginning(self, operation: str) -> None:
        """Begin no items, except those that any rank has begun, which all ranks must make."""
        if self._agree is not None:
            with self._changed:
                self._most = self._begun
            self._begin_up_to(self._agree(self._most, operation))
            self._queues[0].wake()

    def _begin_up_to(self, most: int) -> None:
        with self._changed:
            self._most = most
            self._changed.notify_all()

    def _cancel(self, error: BaseException | None = None, *, agreed: bool = False) -> None:
        """Let every thread end when it has finished its item.

        Parameters
        ----------
        error: what is raised where the next item is taken.
        agreed: whether the first stage still makes items that other ranks have begun.
        """
        with self._changed:
            if not (agreed and self._agree):
                self._most = self._begun
            self._is_closed = True
            self._changed.notify_all()
        # An error that several threads raised would have the frames of all of them.
        for queue in self._queues[:-1]:
            queue.close()
        self._queues[-1].close(error)

    def _start(self) -> None:
        """Start the threads, unless they run."""
        if self._threads or self._is_closed:
            return
        sources: list[Iterable[Any]] = [self._moments(self._queues[0])]
        for stage, queue, out in zip(
            self._stages[1:], self._queues, self._queues[1:], strict=False
        ):
            sources.append(_take_all(queue, out, stage))
        # numba's number of threads and CUDA's device are settings of each thread.
        threads = numba.get_num_threads()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def run(stage: Stage, source: Iterable[Any], out: BoundedQueue[Any]) -> None:
            """Make a stage's items. Its error ends the pipeline."""
            try:
                numba.set_num_threads(threads)
                if device is not None:
                    torch.cuda.set_device(device)
                for item in source:
                    result = stage.work(item)
                    out.put(result, stage.size(result))
                out.put(_END, 0)
            except Closed:
                pass
            except BaseException as error:
                self._cancel(error)

        for stage, source, out in zip(self._stages, sources, self._queues, strict=True):
            thread = threading.Thread(
                target=run, args=(stage, source, out), name=f"hopper-{stage.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _moments(self, out: BoundedQueue[Any]) -> Iterator[Moment]:
        """Yield each iteration once it may be begun."""

        def is_owed() -> bool:
            """Return whether another rank has begun an item and waits for this one to do so too."""
            return self._begun < self._most < _UNLIMITED

        for number in range(self._next, self._stop):
            with suppress(Closed):
                out.await_room(unless=is_owed)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._begun < self._most)
                if self._begun >= self._most:
                    raise Closed
                self._begun += 1
            yield self._moment(number)


def _take_all(queue: BoundedQueue[Any], out: BoundedQueue[Any], stage: Stage) -> Iterator[Any]:
    """Yield the items of a queue once there is room for what a stage makes of them, and once those
    in its reach are known."""
    waiting: deque[Any] = deque()
    items = _take_until_end(queue)
    while True:
        new = list(islice(items, stage.reach + 1 - len(waiting)))
        waiting.extend(new)
        if stage.reach:
            stage.foresee(new)
        if not waiting:
            return
        out.await_room()
        yield waiting.popleft()


def _take_until_end(queue: BoundedQueue[Any]) -> Iterator[Any]:
    while (item := queue.take()) is not _END:
        yield item
