"""Prepares the iterations of a run ahead of what consumes them (DistDGLv2, section 4.2).

The schedule of roots and the draws are functions of seed, epoch and iteration, so training does not
affect what later iterations read. Stages may therefore run ahead, each in a thread of its own, and
whoever consumes their items gets the same ones, bit for bit, with and without threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numba
import torch

from hopper.errors import RequestError

T = TypeVar("T")
Made = Future[tuple[Any, int]]
"""a stage's result of an item, with its size"""


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
    items, nbytes: how many of its results may wait, and in how many bytes. These are counted as if
        all were as large as the largest so far. One may wait whatever its size.
    size: returns the bytes of a result.
    reach: how many of the following items are made known to ``foresee`` before an item is worked
        on. The first stage has no such window.
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
    agree: if ranks exchange messages in the first stage: every rank calls it with a number, and it
        returns the largest of all ranks. So all of them begin the same items in that stage.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        iterations: int,
        epochs: int = 1,
        *,
        start: tuple[int, int] = (0, 0),
        ahead: bool = True,
        agree: Callable[[int], int] | None = None,
    ) -> None:
        if iterations < 1:
            raise RequestError(f"pipeline: expected an iteration an epoch at least, {iterations=}")
        self._stages, self._ahead, self._agree = stages, ahead, agree if ahead else None
        self._iterations, self._stop = iterations, iterations * epochs
        self._next = start[0] * iterations + start[1]
        """number of the next item to hand out, counted from the first iteration of epoch 0"""
        self._threads: list[_StageThread] = []
        self._made: list[deque[Made]] = [deque() for _ in stages]
        """by stage, its results with their sizes, from that of the next item on"""
        self._largest: list[int | None] = [None] * len(stages)
        """by stage, the bytes of its largest result; None before the first one"""
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Close the pipeline. After an error its threads end by themselves: they may wait for a
        server or a rank that is lost, which must not delay the error."""
        if error_type is None:
            self.close()
        else:
            self._end(wait=False)

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
        if self._is_closed:
            raise RuntimeError("the pipeline is closed")
        if self._ahead:
            item = self._take_made()
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
        self._end(wait=True)

    def _moment(self, number: int) -> Moment:
        return Moment(*divmod(number, self._iterations))

    def _end(self, *, wait: bool) -> None:
        """End every thread when it has finished its item. If ranks agree, all make the items that
        they have begun in the first stage, since they wait for each other there."""
        self._is_closed = True
        for number, made in enumerate(self._made):
            is_shared = wait and number == 0 and self._agree is not None
            for future in () if is_shared else made:
                future.cancel()
        for thread in self._threads:
            thread.jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _take_made(self) -> Any:
        """Return the next item of the threads, and let them begin the ones after it."""
        self._begin()
        try:
            for future in (future for made in self._made for future in made):
                if future.done():
                    future.result()
            taken = [made[0].result() for made in self._made]
            if self._agree is not None and self._largest[0] is None:
                self._largest[0] = self._agree(taken[0][1])
        except BaseException:
            self._end(wait=False)
            raise
        for number, (made, (_, size)) in enumerate(zip(self._made, taken, strict=True)):
            made.popleft()
            if number or self._agree is None:
                self._largest[number] = max(size, self._largest[number] or 0)
        self._next += 1
        self._begin()
        return taken[-1][0]

    def _begin(self) -> None:
        """Let every stage begin the items that it has room for."""
        if not self._threads:
            self._threads = [_StageThread(stage.name) for stage in self._stages]
        for number, (stage, made) in enumerate(zip(self._stages, self._made, strict=True)):
            end = min(self._next + self._room(number), self._stop)
            for item in range(self._next + len(made), end):
                if number == 0:
                    work = partial(_make_item, stage, self._moment(item))
                else:
                    first = len(made)
                    known = list(islice(self._made[number - 1], first, first + stage.reach + 1))
                    is_begun = made or self._largest[number] is not None
                    new = known[stage.reach :] if is_begun else known
                    work = partial(_make_next_item, stage, known, new)
                made.append(Future())
                self._threads[number].jobs.put((made[-1], work))

    def _room(self, number: int) -> int:
        """Return how many of the next items a stage may have begun: those that later stages have
        begun, and those for which results may wait here, at least as many as the next stage
        foresees. Only one, and what is foreseen, before sizes are known."""
        stage, largest = self._stages[number], self._largest[number]
        later = 0 if number + 1 == len(self._stages) else self._room(number + 1)
        foreseen = 0 if number + 1 == len(self._stages) else self._stages[number + 1].reach
        if largest is None:
            return max(1, later) + foreseen
        waiting = min(stage.items, max(1, stage.nbytes // max(1, largest)))
        return later + max(waiting, foreseen)


def _make_item(stage: Stage, item: Any) -> tuple[Any, int]:
    """Make a stage's result of an item; return it with its size."""
    result = stage.work(item)
    return result, stage.size(result)


def _make_next_item(stage: Stage, known: Sequence[Made], new: Sequence[Made]) -> tuple[Any, int]:
    """Make a stage's result of the first known item, once those that are new are foreseen."""
    items = [future.result()[0] for future in known]
    if stage.reach:
        stage.foresee([future.result()[0] for future in new])
    return _make_item(stage, items[0])


class _StageThread(threading.Thread):
    """Does the jobs of a stage, until None is among them. The process does not wait for it."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"hopper-{name}", daemon=True)
        self.jobs = SimpleQueue[tuple[Made, Callable[[], tuple[Any, int]]] | None]()
        # numba's number of threads and CUDA's device are settings of each thread.
        self._kernel_threads = numba.get_num_threads()
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self.start()

    def run(self) -> None:
        numba.set_num_threads(self._kernel_threads)
        if self._device is not None:
            torch.cuda.set_device(self._device)
        has_failed = False
        while job := self.jobs.get():
            future, work = job
            if has_failed:
                future.cancel()
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
                    has_failed = True
