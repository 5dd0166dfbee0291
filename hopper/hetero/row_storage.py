"""Storage of learnable rows and their optimiser's state while a run trains them.

Rows are stored in memory or in mapped files. The kernel writes rows of a mapped file out when
memory is short, and reads them when they are accessed. The file loses its name as soon as it is
mapped, so it disappears with its process. Only checkpoints are permanent.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from hopper.errors import StorageError


class MemoryStorage:
    """Makes tables for learnable rows, in the memory of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def zeros(self, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
        """Make a table [rows, dim] of zeros, which is read and written in place."""
        return torch.zeros(rows, dim, dtype=dtype, device=self._device)

    def write_out(self, table: Tensor) -> None:
        """Write a table to its file, if it has one, so that later reads use the file."""


class MappedStorage(MemoryStorage):
    """Makes tables in mapped files without a name, on the CPU and on the disk of a folder, which is
    made if it is missing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(torch.device("cpu"))
        self._folder = folder
        self._mapped: dict[int, tuple[mmap.mmap, BinaryIO]] = {}
        self._files = contextlib.ExitStack()
        weakref.finalize(self, self._files.close)

    def zeros(self, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
        """Make a table of zeros in a new file. A :class:`StorageError` says that the disk has too
        little space, or that the folder cannot be written to."""
        size = rows * dim * dtype.itemsize
        if not size:
            return super().zeros(rows, dim, dtype)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as failing:
                file = failing.enter_context(tempfile.TemporaryFile(dir=self._folder))
                # If the disk could not fill a hole later, the process would be killed.
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = mmap.mmap(file.fileno(), size)
                # Rows are accessed at random, so reading ahead would be wasted.
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
        """Flush a table to its file, and drop its pages from memory."""
        if table.data_ptr() not in self._mapped:
            return
        mapped, file = self._mapped[table.data_ptr()]
        mapped.flush()
        # The page cache keeps a page for as long as it is mapped, so unmap pages first.
        mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
