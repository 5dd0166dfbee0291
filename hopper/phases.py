"""The phases of a piece of work: timed, and announced to whoever shows progress."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """What shows progress (a bar, plain lines, nothing)."""

    def begin(self, phase: str, total: int | None) -> None:
        """A phase starts; ``total`` units of work are expected, None where that is unknown."""

    def advance(self, units: int) -> None:
        """Some units of the current phase are done."""

    def end(self, seconds: float) -> None:
        """The current phase is over, after this many seconds."""


class Silent:
    """Shows nothing."""

    def begin(self, phase: str, total: int | None) -> None:
        """Does nothing."""

    def advance(self, units: int) -> None:
        """Does nothing."""

    def end(self, seconds: float) -> None:
        """Does nothing."""


class Phases:
    """Times phases and passes their progress on."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress: Progress = progress or Silent()
        self.seconds: dict[str, float] = {}
        """seconds of every finished phase, in order"""

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Progress]:
        """Run a phase; yields what its units are reported to."""
        self._progress.begin(name, total)
        start = time.perf_counter()
        try:
            yield self._progress
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + round(elapsed, 3)
            self._progress.end(elapsed)
