"""Publish a directory when it is complete, and not before."""

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
    """Yield a folder beside ``out`` to write into; rename it to ``out`` at the end.

    An exception removes the folder. Folders that killed processes left of the same ``out`` are
    removed first.

    Raises
    ------
    RequestError: ``out`` has content, or its disk has too little space.
    """
    refuse_occupied(out)
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(_unfinished_prefix(out), parent) as work:
        require_space(parent, needed_bytes)
        # The scratch folder is private; a published one obeys the umask.
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
    """Remove the unfinished folders that ended processes have left of ``out``."""
    parent = out.absolute().parent
    if parent.is_dir():
        remove_abandoned(_unfinished_prefix(out), parent)


def require_space(directory: Path, nbytes: int) -> None:
    """Refuse a write that the disk of an existing directory cannot hold.

    Raises
    ------
    RequestError: there is too little space. The text has the bytes needed and available.
    """
    available = shutil.disk_usage(directory).free
    if nbytes > available:
        raise RequestError(
            f"{directory}: too little disk space: {nbytes / 2**30:.2f} GiB ({nbytes} bytes) "
            f"needed, {available / 2**30:.2f} GiB ({available} bytes) available"
        )


def refuse_occupied(out: Path) -> None:
    """Refuse a destination that is a file or a directory with content.

    Raises
    ------
    RequestError: it is one of these. The text names it.
    """
    if out.is_dir():
        if any(out.iterdir()):
            raise RequestError(f"{out}: already exists and is not empty; choose another --out")
    elif out.exists() or out.is_symlink():
        raise RequestError(f"{out}: already exists and is not a directory")


def _unfinished_prefix(out: Path) -> str:
    return f".{out.name}.unfinished-"
