"""Directories that are there when they are complete, and not before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopper.errors import RequestError
from hopper.scratch import remove_abandoned, scratch_folder


@contextmanager
def unpublished(out: Path, needed_bytes: int) -> Iterator[Path]:
    """A folder beside ``out`` to write into: renamed to it at the end, removed on any exception.

    What a killed process left of the same ``out`` is removed first.

    Raises
    ------
    RequestError: ``out`` has content, or its disk has too little space.
    """
    refuse_occupied(out)
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(_unfinished(out), parent) as work:
        require_space(parent, needed_bytes)
        # It was made private; what is published obeys the umask like any other.
        umask = os.umask(0)
        os.umask(umask)
        work.chmod(0o777 & ~umask)
        yield work
        refuse_occupied(out)
        try:
            work.rename(out)
        except OSError as error:
            raise RequestError(f"{out}: cannot be put in place: {error}") from error


def remove_unfinished(out: Path) -> None:
    """Remove what processes that ended early have left of ``out``."""
    parent = out.absolute().parent
    if parent.is_dir():
        remove_abandoned(_unfinished(out), parent)


def require_space(directory: Path, needed: int) -> None:
    """Refuse a write that the disk of an existing directory cannot hold.

    Raises
    ------
    RequestError: naming the bytes needed and available.
    """
    available = shutil.disk_usage(directory).free
    if needed > available:
        raise RequestError(
            f"{directory}: too little disk space: {needed / 2**30:.2f} GiB ({needed} bytes) "
            f"needed, {available / 2**30:.2f} GiB ({available} bytes) available"
        )


def refuse_occupied(out: Path) -> None:
    """Refuse a destination that is a file or a directory with content.

    Raises
    ------
    RequestError: naming the destination.
    """
    if out.is_dir():
        if any(out.iterdir()):
            raise RequestError(f"{out}: already exists and is not empty; choose another --out")
    elif out.exists() or out.is_symlink():
        raise RequestError(f"{out}: already exists and is not a directory")


def _unfinished(out: Path) -> str:
    return f".{out.name}.unfinished-"
