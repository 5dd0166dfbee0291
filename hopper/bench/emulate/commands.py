"""Running ``ip`` and ``tc``, and what it means when they cannot."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from hopper.signal_handlers import handle_signals

_LIMIT_SECONDS: Final = 30.0
_SYSTEM_FOLDERS: Final = ("/usr/sbin", "/sbin")
ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NotAvailable(Exception):
    """An emulated cluster cannot be had here; the text says what is missing."""


def find_program(name: str) -> str:
    """The path of a program, also where a user's PATH leaves out the administrator's folders.

    Raises
    ------
    NotAvailable: there is none.
    """
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS]))
    if found is None:
        raise NotAvailable(f"the program `{name}` is not installed (Debian: package iproute2)")
    return found


def run(program: str, *words: str, batch: Sequence[str] = ()) -> str:
    """Run a command to its end; returns what it printed.

    Parameters
    ----------
    batch: lines for its standard input, where the words end in ``-batch -``.

    Raises
    ------
    NotAvailable: it is missing or failed; quotes what it said.
    """
    command = [find_program(program), *words]
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in batch),
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_SECONDS,
            # Ctrl-C is for this process, which then takes down what was built.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"`{program} {' '.join(words)}` failed: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NotAvailable(f"`{program} {' '.join(words)}` failed: {said}")
    return done.stdout


@contextmanager
def signals_held() -> Iterator[None]:
    """Let what runs inside come to its end; a signal to end takes effect after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    got: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        got.append(number)

    try:
        with handle_signals(ENDING_SIGNALS, hold):
            yield
    finally:
        for number in got[:1]:
            os.kill(os.getpid(), number)
