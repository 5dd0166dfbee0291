"""Spans and events of a run: one JSON line each, one file a rank.

A span is ``{"span", "start", "seconds", "cpu", ...}`` with ``start`` in seconds since the log was
opened and ``cpu`` the processor seconds of its own thread; its names are the stages of design.md's
results schema. What is left of ``seconds`` is waiting: for other ranks, for the network, for a
processor. Spans of threads that work ahead name their thread: ``{"thread": "plan"}``.

The first line, and again the first line of a resumed run, tells when that was:
``{"event": "opened", "start": 0, "unix", "monotonic", "clock"}``. ``monotonic`` is read from the
clock that ``start`` and ``seconds`` are measured with; ranks whose ``clock`` is the same word share
it, so their spans can be laid on one axis exactly. For others there is ``unix``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TextIO, get_args

Stage = Literal["sample", "gather", "compute", "migrate", "sync", "wait"]
STAGES: tuple[Stage, ...] = get_args(Stage)

OPENED: Final = "opened"
"""the event that tells when a log was opened"""
_TAIL_BYTES: Final = 1 << 16
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _OfThread(threading.local):
    """What every thread has of its own.

    seconds: by stage. within: seconds of the stages that lay within the one under way. context:
    what every line carries.
    """

    def __init__(self) -> None:
        self.seconds: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self.within = 0.0
        self.context: dict[str, Any] = {}


class RunLog:
    """Writes the spans of one rank; sums the stage times of each of its threads by itself."""

    def __init__(
        self,
        path: Path | None = None,
        append: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``path`` and ``append`` as of :meth:`open`; None keeps the sums and writes nothing.
        ``clock`` tells seconds."""
        self._clock = clock
        self._opened = clock()
        self._own = _OfThread()
        self._lock = threading.Lock()
        self._totals: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self._file: TextIO | None = None
        if path is not None:
            self.open(path, append=append)

    def open(self, path: Path, *, append: bool) -> None:
        """Write to a file from now on, and forget the sums.

        Parameters
        ----------
        append: keep what the file holds.
        """
        self.take_stage_seconds()
        self._opened = self._clock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if append:
            _drop_torn_line(path)
        self._file = path.open("a" if append else "w")
        self._write(
            {
                "event": OPENED,
                "start": 0.0,
                "unix": time.time(),
                "monotonic": self._opened,
                "clock": _clock(),
            }
        )

    def within(self, **context: Any) -> None:
        """Set what every following line of this thread carries (epoch, iteration)."""
        self._own.context = context

    @contextmanager
    def noting(self, **fields: Any) -> Iterator[None]:
        """Let this thread's lines that follow carry more fields, for a while."""
        before = self._own.context
        self._own.context = before | fields
        try:
            yield
        finally:
            self._own.context = before

    @contextmanager
    def stage(self, name: Stage, **fields: Any) -> Iterator[dict[str, Any]]:
        """Time a stage; fields put into the yielded dictionary are logged with it.

        A stage may lie within another: its span does too, but its seconds are added to its own sum
        alone.
        """
        start, cpu = self._clock(), time.thread_time()
        own = self._own
        before, own.within = own.within, 0.0
        try:
            yield fields
        finally:
            seconds = self._clock() - start
            own.seconds[name] += seconds - own.within
            with self._lock:
                self._totals[name] += seconds - own.within
            own.within = before + seconds
            self._write(
                {
                    "span": name,
                    "start": start - self._opened,
                    "seconds": seconds,
                    "cpu": time.thread_time() - cpu,
                    **fields,
                }
            )

    def event(self, name: str, **fields: Any) -> None:
        """Log something that happened."""
        self._write({"event": name, "start": self._clock() - self._opened, **fields})

    def take_stage_seconds(self) -> dict[Stage, float]:
        """This thread's seconds by stage since its last call; starts from zero again."""
        taken = self._own.seconds
        self._own.seconds = dict.fromkeys(STAGES, 0.0)
        return taken

    def add_stage_seconds(self, seconds: Mapping[Stage, float]) -> None:
        """Count another thread's as this one's."""
        for name, each in seconds.items():
            self._own.seconds[name] += each

    def total_seconds(self) -> dict[Stage, float]:
        """All threads' seconds by stage since the log was made."""
        with self._lock:
            return dict(self._totals)

    def flush(self) -> None:
        """Hand what was logged to the operating system."""
        with self._lock:
            if self._file is not None:
                self._file.flush()

    def close(self) -> None:
        """Close the file; further lines are dropped."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if self._file is not None:
                self._file.write(json.dumps({**self._own.context, **line}) + "\n")


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed process has left of its last line, so that the next one is whole."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        end = file.seek(0, 2)
        while end:
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)


def _clock() -> str:
    """A word for this machine's monotonic clock: Linux's identifier of the boot it counts from.

    Containers and network namespaces of one machine share both. "" where it cannot be told.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
