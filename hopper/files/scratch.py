"""Temporary folders that are removed even after their process was killed.

A process holds a lock on its folder, which the kernel releases however the process ends. Making a
folder first removes the folders of the same kind that nobody locks.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hopper.process.signal_handlers import defer_signals

_DRAWN: Final = re.compile(r"[a-z0-9_]{8}")
"""What mkdtemp appends to a prefix."""


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a new folder, and remove it when the context is left.

    Parameters
    ----------
    prefix: the beginning of its name. Folders with one prefix are of one kind, and no other
        folder's name may begin with it.
    parent: the folder to make it in; by default, that of temporary files.

    Raises
    ------
    OSError: the folder cannot be made; names it.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_abandoned(prefix, parent)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Another process may remove the folder, or be about to, before it is locked.
        with suppress(BlockingIOError):
            descriptor = _take(folder)
            if folder.exists():
                break
            _give_back(descriptor)
    try:
        yield folder
    finally:
        with defer_signals():
            shutil.rmtree(folder, ignore_errors=True)
            _give_back(descriptor)


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Remove the folders of a kind whose processes have ended."""
    for folder in parent.iterdir():
        name = folder.name
        if not name.startswith(prefix) or not _DRAWN.fullmatch(name.removeprefix(prefix)):
            continue
        try:
            descriptor = _take(folder)
        except BlockingIOError:
            continue
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            _give_back(descriptor)


def _take(folder: Path) -> int | None:
    """Lock a folder; None if it is gone, or locks are not supported.

    Raises
    ------
    BlockingIOError: another process holds it.
    """
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _give_back(descriptor)
        raise
    except OSError:
        _give_back(descriptor)
        return None
    return descriptor


def _give_back(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)
