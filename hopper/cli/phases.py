"""Show the progress of work in phases, on a terminal and elsewhere."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column

from hopper.timing.phases import Progress

_SHOWN_SECONDS: Final = 0.05


def show_progress() -> tuple[Console, Progress]:
    """Make the console for messages and the progress. Standard output is for results."""
    console = Console(file=sys.stderr, soft_wrap=True, highlight=False)
    return console, _Bars(console) if console.is_terminal else _Lines(console)


class _Bars:
    """Progress on a terminal: a bar for each phase, which stays when the phase is over."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, phase: str, total: int | None) -> None:
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=Column(overflow="fold")),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bars.add_task(phase, total=total)
        self._bars.start()

    def advance(self, units: int) -> None:
        self._bars.advance(self._task, units)

    def end(self, seconds: float) -> None:
        """Stop the bar. A phase without known units counts as one unit."""
        if self._bars.tasks[0].total is None:
            self._bars.update(self._task, total=1, completed=1)
        self._bars.stop()


class _Lines:
    """Progress elsewhere: a line when a phase that took a while is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""

    def begin(self, phase: str, total: int | None) -> None:
        self._phase = phase

    def advance(self, units: int) -> None:
        """Print nothing."""

    def end(self, seconds: float) -> None:
        """Print the phase and its time, unless that is short or an error or Ctrl-C has ended it."""
        if seconds >= _SHOWN_SECONDS and sys.exc_info()[0] is None:
            self._console.print(f"{self._phase}: {seconds:.1f} s")
