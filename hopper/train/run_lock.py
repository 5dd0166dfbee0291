"""Locks that keep two runs out of one folder.

The launching process holds one lock and rank 0 another, each for as long as it lives. A run of
``hopper train`` and one of torchrun thus exclude each other. Ranks that a killed launcher has left
behind for a moment exclude a new run too. The kernel releases a lock when its process ends.
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
    """Lock a run's folder while the context lasts; raise RequestError if another run uses it. A
    launcher also checks that no rank 0 does. Afterwards the lock file stays, empty."""
    with _take(run_dir, holder) as file:
        if holder == "launcher":
            with _take(run_dir, "rank-0"):
                pass
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
        file.flush()
        yield
        # A killed process leaves its text in the file, but only the lock counts.
        file.truncate(0)


def make_run_folder(run_dir: Path) -> None:
    """Make a run's folder, if it does not exist."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"train.run_dir: {run_dir}: cannot be made: {error.strerror} ({error.filename})"
        ) from error


def identify(run_dir: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one in its place; None if there is none."""
    try:
        found = run_dir.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _take(run_dir: Path, holder: Holder) -> Iterator[IO[str]]:
    """Open a lock file and lock it, until the end of the context."""
    make_run_folder(run_dir)
    path = run_dir / f".{holder}.lock"
    try:
        # The file may belong to another run, so it is not truncated here.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RequestError(
            f"train.run_dir: {run_dir}: cannot be written to: {error.strerror}"
        ) from error
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(
                f"train.run_dir: {run_dir} is in use by {_read_holder(file)}; name another folder, "
                "or end that run first"
            ) from None
        except OSError as error:
            raise RequestError(
                f"train.run_dir: {run_dir}: its file system cannot lock files ({error.strerror}), "
                "and two runs in one folder would destroy each other's checkpoints; name a folder "
                "on another one"
            ) from error
        yield file


def _read_holder(file: IO[str]) -> str:
    try:
        holder = json.load(file)
        return f"another run (process {int(holder['pid'])} on {holder['host']})"
    except (ValueError, KeyError, TypeError):
        # The other run holds the lock but has not written its text yet.
        return "another run"
