"""Writing files so that they are complete or absent, even after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_UNFINISHED: Final = ".unfinished"


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it."""
    with replacing(path) as unfinished:
        unfinished.write_text(text)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write a file under, and rename the file to ``path`` afterwards.

    The content is on the disk before the file is renamed, so a power loss leaves the old file or
    the new one. After an error the temporary file is removed.
    """
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files that killed processes have left in a folder and below it.

    No process may be writing there. Errors of the file system are ignored.
    """
    with suppress(OSError):
        for file in folder.rglob(f"*{_UNFINISHED}"):
            file.unlink(missing_ok=True)
