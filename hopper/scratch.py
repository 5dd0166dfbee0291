"""Folders for a while: gone when their work has ended, or when the next of their kind begins.

A process that is killed removes nothing. So each folder is held by a lock, which the kernel gives
back however its process ends, and whoever makes a folder first removes those that nobody holds.
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

_DRAWN: Final = re.compile(r"[a-z0-9_]{8}")
"""what mkdtemp adds to a prefix"""


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder of this process, removed when the context is left.

    Parameters
    ----------
    prefix: what its name begins with; folders of one prefix are of one kind, and nobody else's
        folder may be called so.
    parent: where it lies; by default, where temporary files do.

    Raises
    ------
    OSError: it cannot be made; names it.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_abandoned(prefix, parent)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        descriptor = _take(folder)
        # Another process may have looked before the lock was there.
        if folder.exists():
            break
        _give_back(descriptor)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _give_back(descriptor)


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Remove the folders of a kind whose processes have ended; what is in use stays."""
    for folder in parent.iterdir():
        name = folder.name
        if not name.startswith(prefix) or not _DRAWN.fullmatch(name.removeprefix(prefix)):
            continue
        descriptor = _take(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            _give_back(descriptor)


def _take(folder: Path) -> int | None:
    """Lock a folder; None if it is another's or gone, or its file system locks no folders."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _give_back(descriptor)
        return None
    return descriptor


def _give_back(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)
