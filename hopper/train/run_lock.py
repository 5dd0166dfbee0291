"""One run, one folder: locks that tell whether a run's folder is in use.

The launching process holds one lock and rank 0 another, each for as long as it lives: runs that are
started by ``hopper train`` and by torchrun keep each other out, and so do the ranks that a killed
launcher has left for a moment. The kernel gives a lock back when its process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from hopper.errors import RequestError

Holder = Literal["launcher", "rank-0"]


@contextmanager
def lock_run_folder(run_dir: Path, holder: Holder) -> Iterator[None]:
    """Hold a run's folder; the lock file stays, empty, when it is given back.

    A launcher also makes sure that no rank 0 holds the folder, before it starts one.

    Raises
    ------
    RequestError: another run is using the folder (names its process), or the folder cannot be
        written to.
    """
    with _open(run_dir, holder) as file:
        _take(file, run_dir)
        if holder == "launcher":
            with _open(run_dir, "rank-0") as other:
                _take(other, run_dir)
        _sign(file)
        yield
        # What a killed process leaves in it says nothing: the lock is what counts.
        file.truncate(0)


def make_run_folder(run_dir: Path) -> None:
    """Make a run's folder, if it is not there.

    Raises
    ------
    RequestError: it cannot be made; names it and says why.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"train.run_dir: {run_dir}: cannot be made: {error.strerror} ({error.filename})"
        ) from error


def _open(run_dir: Path, holder: Holder) -> IO[str]:
    make_run_folder(run_dir)
    path = run_dir / f".{holder}.lock"
    try:
        # Neither truncated nor read yet: it may be another run's.
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+")
    except OSError as error:
        raise RequestError(
            f"train.run_dir: {run_dir}: cannot be written to: {error.strerror}"
        ) from error


def _take(file: IO[str], run_dir: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError(
            f"train.run_dir: {run_dir} is in use by {_read_holder(file)}; name another folder, or "
            "end that run first"
        ) from None
    except OSError as error:
        raise RequestError(
            f"train.run_dir: {run_dir}: its file system cannot lock files ({error.strerror}), and "
            "two runs in one folder would destroy each other's checkpoints; name a folder on "
            "another one"
        ) from error


def _sign(file: IO[str]) -> None:
    file.seek(0)
    file.truncate()
    json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
    file.flush()


def _read_holder(file: IO[str]) -> str:
    try:
        told = json.load(file)
        return f"another run (process {int(told['pid'])} on {told['host']})"
    except (ValueError, KeyError, TypeError):
        # It has taken the lock and not signed yet.
        return "another run"
