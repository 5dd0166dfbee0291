"""Writing files so that they are complete or absent, even after a crash, and JSON in them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from hopper.files.addresses import AnyPath, remote_errors
from hopper.files.scratch import scratch_folder

UNFINISHED: Final = ".unfinished"
_NON_FINITE: Final = ("nan", "inf", "-inf")


def to_json(value: Any, **options: Any) -> str:
    """Write a value as JSON, in which numbers that are not finite are words.

    Parameters
    ----------
    options: keyword arguments of ``json.dumps``.
    """
    return json.dumps(spell_non_finite(value), allow_nan=False, **options)


def spell_non_finite(value: Any) -> Any:
    """Replace the numbers that JSON cannot represent by the words "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: spell_non_finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [spell_non_finite(entry) for entry in value]
    return value


def read_non_finite(value: Any) -> Any:
    """Replace the words of :func:`spell_non_finite` by numbers again."""
    if isinstance(value, str) and value in _NON_FINITE:
        return float(value)
    if isinstance(value, Mapping):
        return {key: read_non_finite(entry) for key, entry in value.items()}
    return [read_non_finite(entry) for entry in value] if isinstance(value, list) else value


def write_text(path: AnyPath, text: str) -> None:
    """Write a file under a temporary name, then rename it, or put it at its address."""
    with replacing(path) as unfinished:
        unfinished.write_text(text)


@contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """Yield a temporary name to write a file under, and rename the file to ``path`` afterwards, or
    put it at that address, where it appears once it is complete.

    The content is on the disk before the file is renamed, so a power loss leaves the old file or
    the new one. After an error the temporary file is removed.

    Raises
    ------
    StorageError: the address cannot be written; names it.
    """
    if not isinstance(path, Path):
        with scratch_folder("hopper-upload-") as scratch:
            yield scratch / path.name
            with remote_errors(path):
                upload(scratch / path.name, path.fs, path.path)
        return
    unfinished = path.with_name(path.name + UNFINISHED)
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


def upload(file: Path, system: Any, target: str) -> None:
    """Copy a file to a path of a file system of fsspec, where it replaces an older one only once it
    is complete."""
    # Object storage renames by copying, but there a file only appears once complete.
    system.put_file(str(file), target + UNFINISHED)
    system.mv(target + UNFINISHED, target)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files that killed processes have left in a folder and below it.

    No process may be writing there. Errors of the file system are ignored.
    """
    with suppress(OSError):
        for file in folder.rglob(f"*{UNFINISHED}"):
            file.unlink(missing_ok=True)
