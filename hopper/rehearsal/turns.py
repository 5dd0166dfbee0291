"""Ranks that take turns in one process, each with its own clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class RehearsalEnded(Exception):
    """The rehearsal was ended by the error of another rank, which is the cause."""


class Clock:
    """A rank's clock, which stands still during other ranks' turns.

    Parameters
    ----------
    pace: seconds that the rank needs for a processor second of this machine.

    Attributes
    ----------
    waited: seconds in which the rank waited without using a processor.
    """

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._spent = self.waited = 0.0
        self._since: float | None = None

    def read(self) -> float:
        """Return the present time in seconds."""
        return self.busy() + self.waited

    def busy(self) -> float:
        """Return the seconds in which the rank used a processor."""
        running = 0.0 if self._since is None else time.process_time() - self._since
        return self._spent + running * self._pace

    def stop(self) -> None:
        """Stop the clock at the end of the rank's turn."""
        self._spent, self._since = self.busy(), None

    def go_on(self) -> None:
        """Start the clock at the beginning of the rank's turn."""
        self._since = time.process_time()

    def work(self, seconds: float) -> None:
        """Add processor time."""
        self._spent += seconds * self._pace

    def wait_until(self, moment: float) -> None:
        """Add waiting time until the clock shows ``moment``."""
        self.waited += max(0.0, moment - self.read())


class Turns:
    """Gives ranks their turns: one runs until it waits for others.

    Attributes
    ----------
    clocks: by rank.
    lock: held by the rank whose turn it is.
    """

    def __init__(self, world: int, pace: float) -> None:
        self.clocks = [Clock(pace) for _ in range(world)]
        self.lock = threading.Lock()
        self._running = world
        self._failure: BaseException | None = None
        self._waiting: set[threading.Condition] = set()

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Run ``work`` as every rank, and return all results.

        Raises
        ------
        The first error of any rank, once all have ended.
        """
        results: list[Any] = [None] * len(self.clocks)

        def run_rank(rank: int) -> None:
            """Do a rank's work while it has its turn."""
            with self.lock:
                self.clocks[rank].go_on()
                try:
                    if self._failure is None:
                        results[rank] = work(rank)
                except BaseException as error:
                    self._fail(error)
                finally:
                    self.clocks[rank].stop()
                    self._leave()

        threads = [
            threading.Thread(target=run_rank, args=(rank,), name=f"rank-{rank}", daemon=True)
            for rank in range(len(self.clocks))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return results

    def wait(self, rank: int, condition: threading.Condition, ended: Callable[[], bool]) -> None:
        """End a rank's turn until ``ended()`` is True.

        Parameters
        ----------
        condition: a condition of :attr:`lock`, which is notified when ``ended`` may have changed.

        Raises
        ------
        RehearsalEnded: a rank has failed, or all ranks wait for each other.
        """
        if ended():
            return
        clock = self.clocks[rank]
        clock.stop()
        self._waiting.add(condition)
        self._leave()
        while not ended() and self._failure is None:
            condition.wait()
        clock.go_on()
        if self._failure is not None:
            if not ended():
                # No rank has resumed this one, so it must count itself as running again.
                self._running += 1
            raise RehearsalEnded from self._failure

    def resume(self, condition: threading.Condition, ranks: int) -> None:
        """End the wait of ``ranks`` ranks for a condition."""
        self._running += ranks
        self._waiting.discard(condition)
        condition.notify_all()

    def _leave(self) -> None:
        self._running -= 1
        if self._running == 0 and self._waiting:
            self._fail(RuntimeError("all ranks of a rehearsal wait for each other"))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        for condition in self._waiting:
            condition.notify_all()
