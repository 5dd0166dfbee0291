"""Files that are whole or not there, whenever a process or a machine ends."""

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
    """The temporary name to write a file under; it takes the place of ``path`` once its content is
    on the disk, so that a power loss leaves old or new. After an error nothing is left of it."""
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
    """Remove what processes that were killed have left half-written in a folder and below it, as
    far as its disk lets; nobody may be writing there."""
    with suppress(OSError):
        for file in folder.rglob(f"*{_UNFINISHED}"):
            file.unlink(missing_ok=True)
