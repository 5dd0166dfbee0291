"""Copies of checkpoints elsewhere: another folder, or an address that fsspec knows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hopper.errors import ConfigError
from hopper.train.checkpoint_files import warn

_UNFINISHED = ".unfinished"


class CheckpointCopy:
    """Copies files; that one cannot be copied is told and ends nothing.

    Parameters
    ----------
    address: a folder, or a URL such as ``s3://bucket/folder``; "" = nothing is copied.

    Raises
    ------
    ConfigError: fsspec does not know it, or lacks what it needs.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._system: Any = None
        if address:
            # Not read by runs that copy nothing.
            import fsspec

            try:
                self._system, self._folder = fsspec.core.url_to_fs(address)
            except (ValueError, ImportError, OSError) as error:
                raise ConfigError(
                    f"train.checkpoint_copy: {address}: expected a folder or an address that "
                    f"fsspec can write to: {error}"
                ) from error

    def put(self, file: Path) -> None:
        """Copy a file; one of its name stays whole until it is there."""
        if self._system is None:
            return
        target = f"{self._folder}/{file.name}"
        try:
            self._system.makedirs(self._folder, exist_ok=True)
            # Where renaming is copying, as in object storage, a file is whole or not there anyhow.
            self._system.put_file(str(file), target + _UNFINISHED)
            self._system.mv(target + _UNFINISHED, target)
        except Exception as error:  # whatever a file system of others raises
            warn(f"train.checkpoint_copy: {self._address}: {file.name} was not copied: {error}")

    def remove(self, names: Iterable[str]) -> None:
        """Remove what is not needed any more."""
        for name in names if self._system is not None else ():
            try:
                self._system.rm_file(f"{self._folder}/{name}")
            except FileNotFoundError:
                continue
            except Exception as error:  # see above
                warn(f"train.checkpoint_copy: {self._address}: {name} was not removed: {error}")


NO_COPY = CheckpointCopy("")
"""nothing is copied"""
