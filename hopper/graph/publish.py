"""Publish a directory when it is complete, and not before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hopper.errors import RequestError
from hopper.files.addresses import refuse_address
from hopper.files.scratch import scratch_folder

_FLUSHED_AT_ONCE: Final = 16


@contextmanager
def atomic_output_dir(out: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a folder beside ``out`` to write into; rename it to ``out`` at the end.

    All files are on the disk before it is renamed, so a power loss leaves all of it or nothing. An
    exception removes the folder.
    """
    refuse_occupied(out)
    with folder_beside(out) as scratch:
        require_space(scratch, needed_bytes)
        # The scratch folder is private; a published one obeys the umask.
        work = scratch / "published"
        work.mkdir()
        yield work
        refuse_occupied(out)
        # Many files at once take less time.
        with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as pool:
            list(pool.map(_flush, [work, *work.rglob("*")]))
        try:
            work.rename(out)
        except OSError as error:
            raise RequestError(f"{out}: cannot be put in place: {error}") from error
        _flush(out.absolute().parent)


@contextmanager
def folder_beside(out: Path) -> Iterator[Path]:
    """Make a temporary folder beside ``out``, on its disk, and remove it afterwards.

    Folders that killed processes have left of the same ``out`` are removed first.
    """
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(f".{out.name}.unfinished-", parent) as folder:
        yield folder


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_space(directory: Path, nbytes: int) -> None:
    """Refuse a write that the disk of an existing directory cannot hold."""
    available = shutil.disk_usage(directory).free
    if nbytes > available:
        raise RequestError(
            f"{directory}: too little disk space: {nbytes / 2**30:.2f} GiB ({nbytes} bytes) "
            f"needed, {available / 2**30:.2f} GiB ({available} bytes) available"
        )


def refuse_occupied(out: Path) -> None:
    """Refuse a destination that is a file, a directory with content, or an address."""
    refuse_address(out)
    if out.is_dir():
        if any(out.iterdir()):
            raise RequestError(f"{out}: already exists and is not empty; choose another --out")
    elif out.exists() or out.is_symlink():
        raise RequestError(f"{out}: already exists and is not a directory")
