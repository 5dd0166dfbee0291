"""Timing the phases of a piece of work, and reporting their progress."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Shows progress, for example as a bar or in lines of text."""

    def begin(self, phase: str, total: int | None) -> None:
        """Show the beginning of a phase.

        Parameters
        ----------
        total: expected units of work; None if unknown.
        """

    def advance(self, units: int) -> None:
        """Show that some units of the current phase are done."""

    def end(self, seconds: float) -> None:
        """Show the end of the current phase, and how long it took."""


class Silent:
    """Shows nothing."""

    def begin(self, phase: str, total: int | None) -> None:
        """Do nothing."""

    def advance(self, units: int) -> None:
        """Do nothing."""

    def end(self, seconds: float) -> None:
        """Do nothing."""


class Phases:
    """Times phases and passes their progress on."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress: Progress = progress or Silent()
        self.seconds: dict[str, float] = {}
        """Seconds of every finished phase, in order."""

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Progress]:
        """Time a phase; yield the object that its units of work are reported to."""
        self._progress.begin(name, total)
        start = time.perf_counter()
        try:
            yield self._progress
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + round(elapsed, 3)
            self._progress.end(elapsed)
