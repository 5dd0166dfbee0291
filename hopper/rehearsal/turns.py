"""Ranks that take turns on one machine, each by a clock of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class RehearsalEnded(Exception):
    """Another rank has failed; its error says why."""


class Clock:
    """A rank's seconds; it stands still while others have their turn.

    Parameters
    ----------
    pace: seconds that a processor second of this machine takes the rank.

    Attributes
    ----------
    waited: seconds of it that no processor was needed for.
    """

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._spent = self.waited = 0.0
        self._since: float | None = None

    def read(self) -> float:
        """Seconds now."""
        return self.busy() + self.waited

    def busy(self) -> float:
        """Those of a processor."""
        running = 0.0 if self._since is None else time.process_time() - self._since
        return self._spent + running * self._pace

    def stop(self) -> None:
        """What follows is not the rank's."""
        self._spent, self._since = self.busy(), None

    def go_on(self) -> None:
        """What follows is the rank's again."""
        self._since = time.process_time()

    def work(self, seconds: float) -> None:
        """Let a processor have worked for so long."""
        self._spent += seconds * self._pace

    def wait_until(self, moment: float) -> None:
        """Let nothing have been done until then."""
        self.waited += max(0.0, moment - self.read())


class Turns:
    """Gives every rank its turns; the one that waits for others lets them have theirs.

    Attributes
    ----------
    clocks: by rank.
    """

    def __init__(self, world: int, pace: float) -> None:
        self.clocks = [Clock(pace) for _ in range(world)]
        self.lock = threading.Lock()
        self._running = world
        self._failure: BaseException | None = None
        self._waiting: set[threading.Condition] = set()

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What every rank returns; the first error is raised, once all have ended."""
        results: list[Any] = [None] * len(self.clocks)

        def run_rank(rank: int) -> None:
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
        """Let others have their turn until ``ended()``.

        Parameters
        ----------
        condition: of :attr:`lock`; notified when that may be.

        Raises
        ------
        RehearsalEnded: a rank has failed, or nobody is left who could end it.
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
                # Nobody has said so: until it has left, it runs.
                self._running += 1
            raise RehearsalEnded from self._failure

    def resume(self, condition: threading.Condition, ranks: int) -> None:
        """End the wait of so many ranks."""
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
