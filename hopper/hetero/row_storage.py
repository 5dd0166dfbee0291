"""Where learnable rows and their optimiser's state live while a run trains them.

In memory, or in files that are mapped: then the kernel writes rows out when memory is short, and
reads them again when they are met. Such a file is no record of anything: it has no name any more
once it is mapped, and is gone with its process, however that ends. What lasts is checkpoints.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import BinaryIO, Protocol

import torch
from torch import Tensor

from hopper.errors import StorageError


class RowStorage(Protocol):
    """Makes tables."""

    def zeros(self, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
        """[rows, dim] of zeros, to be read and written in place."""

    def write_out(self, table: Tensor) -> None:
        """Let what is read next of a table come from where it is kept: it is written there, and no
        longer in memory."""


class MemoryStorage:
    """Tables on a device; a :class:`RowStorage`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def zeros(self, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
        """See :class:`RowStorage`."""
        return torch.zeros(rows, dim, dtype=dtype, device=self._device)

    def write_out(self, table: Tensor) -> None:
        """See :class:`RowStorage`: it is kept in memory."""


class MappedStorage:
    """Tables in nameless files, on the CPU; a :class:`RowStorage`.

    Parameters
    ----------
    folder: on whose disk; made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[int, tuple[mmap.mmap, BinaryIO]] = {}
        self._files = contextlib.ExitStack()
        weakref.finalize(self, self._files.close)

    def zeros(self, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
        """See :class:`RowStorage`.

        Raises
        ------
        StorageError: the disk has too little space, or the folder cannot be written to.
        """
        size = rows * dim * dtype.itemsize
        if not size:
            return torch.zeros(rows, dim, dtype=dtype)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as failing:
                file = failing.enter_context(tempfile.TemporaryFile(dir=self._folder))
                # A hole that the disk cannot fill later would kill the process.
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = mmap.mmap(file.fileno(), size)
                # Rows are met in no order: what lies beside them would be read in vain.
                mapped.madvise(mmap.MADV_RANDOM)
                table = torch.frombuffer(mapped, dtype=dtype)
                self._files.push(failing.pop_all())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageError(
                f"learnable.folder: {self._folder}: a table of {size} bytes: {reason}"
            ) from error
        self._mapped[table.data_ptr()] = mapped, file
        return table.view(rows, dim)

    def write_out(self, table: Tensor) -> None:
        """See :class:`RowStorage`."""
        kept = self._mapped.get(table.data_ptr())
        if kept is None:
            return
        mapped, file = kept
        mapped.flush()
        # The kernel drops no page that is mapped.
        mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
