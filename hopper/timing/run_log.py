"""Spans and events of a run: one JSON line each, in one file for each rank.

A span is ``{"span", "start", "seconds", "cpu", ...}``. ``span`` is a stage, ``start`` counts
seconds since the log was opened, and ``cpu`` is the processor seconds of the span's thread. The
rest of ``seconds`` is waiting for other ranks, the network or a processor. Threads that work ahead
name themselves: ``{"thread": "plan"}``.

The first line of a run, and of a resumed run, says when the log was opened:
``{"event": "opened", "start": 0, "unix", "monotonic", "clock"}``. ``monotonic`` is a reading of the
clock that measures ``start`` and ``seconds``. Ranks with the same ``clock`` share that clock, so
their spans fit on one axis exactly. Others are aligned by waits that end iterations.
"""

from __future__ import annotations

import json
import mmap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TextIO, get_args

Stage = Literal["sample", "gather", "compute", "migrate", "sync", "wait"]
STAGES: tuple[Stage, ...] = get_args(Stage)

OPENED: Final = "opened"
"""The event that says when a log was opened."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _OfThread(threading.local):
    """One thread's seconds by stage, those of stages in the present one, and all lines' fields."""

    def __init__(self) -> None:
        self.seconds: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self.within = 0.0
        self.context: dict[str, Any] = {}


class RunLog:
    """Writes the spans of one rank, and sums the seconds of stages for each of its threads.

    Parameters
    ----------
    path: the file to write to; None = keep only the sums.
    append: whether to keep the content of the file.
    clock: returns seconds.
    """

    def __init__(
        self,
        path: Path | None = None,
        append: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._opened = clock()
        self._own = _OfThread()
        self._lock = threading.Lock()
        self._totals: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self._file: TextIO | None = None
        if path is not None:
            self.open(path, append=append)

    def open(self, path: Path, *, append: bool) -> None:
        """Write to a file from now on, after its content or in its place; reset this thread's
        sums."""
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

    def set_context(self, **context: Any) -> None:
        """Set the fields of all following lines of this thread, such as epoch and iteration."""
        self._own.context = context

    @contextmanager
    def note_fields(self, **fields: Any) -> Iterator[None]:
        """Add fields to this thread's lines while the context lasts."""
        before = self._own.context
        self._own.context = before | fields
        try:
            yield
        finally:
            self._own.context = before

    @contextmanager
    def stage(self, name: Stage, **fields: Any) -> Iterator[dict[str, Any]]:
        """Time a stage. Fields that are put into the yielded dictionary are logged with it.

        Stages may be nested. The seconds of an inner stage count for its own sum only, and not for
        that of the outer stage.
        """
        start, cpu = self._clock(), time.thread_time()
        thread = self._own
        before, thread.within = thread.within, 0.0
        try:
            yield fields
        finally:
            seconds = self._clock() - start
            thread.seconds[name] += seconds - thread.within
            with self._lock:
                self._totals[name] += seconds - thread.within
            thread.within = before + seconds
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
        """Log an event."""
        self._write({"event": name, "start": self._clock() - self._opened, **fields})

    def take_stage_seconds(self) -> dict[Stage, float]:
        """Return this thread's seconds by stage since its last call. The sums restart from zero."""
        taken = self._own.seconds
        self._own.seconds = dict.fromkeys(STAGES, 0.0)
        return taken

    def add_stage_seconds(self, seconds: Mapping[Stage, float]) -> None:
        """Add another thread's seconds to this thread's."""
        for stage, stage_seconds in seconds.items():
            self._own.seconds[stage] += stage_seconds

    def total_seconds(self) -> dict[Stage, float]:
        """Return all threads' seconds by stage since the log was made."""
        with self._lock:
            return dict(self._totals)

    def flush(self) -> None:
        """Pass all logged lines to the operating system."""
        with self._lock:
            if self._file is not None:
                self._file.flush()

    def close(self) -> None:
        """Close the file. Further lines are dropped."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if self._file is not None:
                self._file.write(json.dumps({**self._own.context, **line}) + "\n")


def _drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line that a killed process has left."""
    if path.is_file() and path.stat().st_size:
        with path.open("r+b") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
            file.truncate(end)


def _clock() -> str:
    """Return an identifier of this machine's monotonic clock, that of the boot; "" if unknown.

    Containers and network namespaces of one machine share the clock and the identifier.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
