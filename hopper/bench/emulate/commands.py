"""Running ``ip`` and ``tc``, with errors that say what is missing here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

_LIMIT_SECONDS: Final = 30.0
_SYSTEM_FOLDERS: Final = ("/usr/sbin", "/sbin")


class NotAvailable(Exception):
    """An emulated cluster is not possible here. The text says what is missing."""


def find_program(name: str) -> str:
    """Find the path of a program. The administrator's folders are searched too.

    Raises
    ------
    NotAvailable: the program is not installed.
    """
    folders = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS])
    path = shutil.which(name, path=folders)
    if path is None:
        raise NotAvailable(f"the program `{name}` is not installed (Debian: package iproute2)")
    return path


def run(program: str, *words: str, batch: Sequence[str] = ()) -> str:
    """Run a command to its end, and return its output.

    Parameters
    ----------
    batch: lines for its standard input, if the words end in ``-batch -``.

    Raises
    ------
    NotAvailable: the command is missing or failed; quotes its error.
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
            # Ctrl-C must reach only this process, which then removes what it has built.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"`{program} {' '.join(words)}` failed: {error}") from error
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NotAvailable(f"`{program} {' '.join(words)}` failed: {reason}")
    return done.stdout
