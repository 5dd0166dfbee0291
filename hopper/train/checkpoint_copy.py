"""Copies of checkpoints in another folder or at an address that fsspec can write to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hopper.errors import ConfigError
from hopper.train.checkpoint_files import warn

_UNFINISHED = ".unfinished"


class CheckpointCopy:
    """Copies files. A copy that fails causes a warning and does not end the run.

    Parameters
    ----------
    address: a folder, or a URL such as ``s3://bucket/folder``; "" = copy nothing.

    Raises
    ------
    ConfigError: fsspec does not know the address, or lacks a package for it.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._system: Any = None
        if address:
            # Runs that copy nothing do not need fsspec.
            import fsspec

            try:
                self._system, self._folder = fsspec.core.url_to_fs(address)
            except (ValueError, ImportError, OSError) as error:
                raise ConfigError(
                    f"train.checkpoint_copy: {address}: expected a folder or an address that "
                    f"fsspec can write to: {error}"
                ) from error

    def put(self, file: Path) -> None:
        """Copy a file. It replaces an older copy only once complete."""
        if self._system is None:
            return
        target = f"{self._folder}/{file.name}"
        try:
            self._system.makedirs(self._folder, exist_ok=True)
            # Object storage renames by copying, but there a file only appears once complete.
            self._system.put_file(str(file), target + _UNFINISHED)
            self._system.mv(target + _UNFINISHED, target)
        except Exception as error:  # A plug-in file system may raise anything.
            warn(f"train.checkpoint_copy: {self._address}: {file.name} was not copied: {error}")

    def remove(self, names: Iterable[str]) -> None:
        """Remove copies that are no longer needed."""
        for name in names if self._system is not None else ():
            try:
                self._system.rm_file(f"{self._folder}/{name}")
            except FileNotFoundError:
                continue
            except Exception as error:  # A plug-in file system may raise anything.
                warn(f"train.checkpoint_copy: {self._address}: {name} was not removed: {error}")
