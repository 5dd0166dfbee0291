"""Copies of what a rank prints, in the run's folder: ``ranks/0.log``, ``ranks/1.log``, ..."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

FOLDER = "ranks"


class RankOutput:
    """The log of this process's rank. The file is opened when the first text comes."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: TextIO | None = None
        self._lock = threading.Lock()

    def keep(self, run_dir: Path, rank: int) -> None:
        """Copy what this process writes to stderr from now on, and the lines of :meth:`write`.

        A process that trains several runs keeps the log of each in its own folder.
        """
        self.forget()
        self._path = run_dir / FOLDER / f"{rank}.log"
        if not isinstance(sys.stderr, _Copied):
            sys.stderr = _Copied(sys.stderr)

    def forget(self) -> None:
        """Keep no log any more."""
        with self._lock:
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
            self._path = self._file = None

    def write(self, text: str) -> None:
        """Append to the log, if there is one."""
        with self._lock:
            if self._path is None:
                return
            try:
                if self._file is None:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self._path.open("a", buffering=1)
                self._file.write(text)
            except OSError:
                # A full disk is told where results are written.
                self._path = None


class _Copied:
    """A stream whose text also goes to the log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        output.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


output = RankOutput()
"""the log of this process"""
