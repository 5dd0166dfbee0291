"""Keep columns of tables on disk while the tables are read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopper.graph.array_file import iter_pieces, name_in_errors

_IN_MEMORY: Final = 1 << 20
"""Bytes that a column may have before it gets a file."""
_TEXTS: Final = 1 << 16
"""Number of texts that are decoded at once."""


class Spool:
    """A column that grows, in memory up to 1 MiB and then in a file.

    The file has no name, and the kernel removes it with its last map.

    Parameters
    ----------
    folder: a folder on the disk that takes the file.
    width: number of columns of a row; 0 = a row is one number.
    """

    def __init__(self, folder: Path, dtype: DTypeLike, width: int = 0) -> None:
        self.length = 0
        self._folder, self._dtype, self._width = folder, np.dtype(dtype), width
        self._waiting: list[NDArray[Any]] = []
        self._waiting_bytes = 0
        self._file: Any = None

    def append(self, values: NDArray[Any]) -> None:
        """Add rows, [n] or [n, width], which are converted to the column's dtype."""
        rows = np.array(values, self._dtype)
        self.length += len(rows)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes > _IN_MEMORY:
            self._write()

    def finish(self) -> NDArray[Any]:
        """Return all rows: an array, or a read-only map of the file."""
        shape = (self.length, self._width) if self._width else (self.length,)
        if self._file is None:
            batches, self._waiting = self._waiting, []
            return np.concatenate([np.empty((0, *shape[1:]), self._dtype), *batches])
        self._write()
        with self._file as file, name_in_errors(self._folder):
            file.flush()
            return np.asarray(np.memmap(file, self._dtype, "r", shape=shape))

    def _write(self) -> None:
        with name_in_errors(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            for rows in self._waiting:
                self._file.write(rows.data if rows.size else b"")
        self._waiting, self._waiting_bytes = [], 0


class SpooledTexts(Sequence[str]):
    """Texts by row, in UTF-8 on disk.

    Parameters
    ----------
    ends: [n] int64, the end of each text in ``data``.
    data: [bytes] uint8, all texts.
    """

    def __init__(self, ends: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        self._ends, self._data = ends, data

    def __len__(self) -> int:
        return self._ends.size

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        index = range(len(self))[row]
        first = int(self._ends[index - 1]) if index else 0
        return bytes(self._data[first : self._ends[index]]).decode()

    def __iter__(self) -> Iterator[str]:
        first = 0
        for _, ends in iter_pieces(self._ends, _TEXTS):
            data = bytes(self._data[first : ends[-1]])
            bounds = [0, *(ends - first).tolist()]
            for start, end in pairwise(bounds):
                yield data[start:end].decode()
            first = int(ends[-1])


class TextSpool:
    """Collects texts in a :class:`Spool`."""

    def __init__(self, folder: Path) -> None:
        self._ends, self._data = Spool(folder, np.int64), Spool(folder, np.uint8)

    def append(self, texts: Any) -> None:
        """Add texts, a pyarrow array of strings without nulls."""
        import pyarrow

        column = texts.cast(pyarrow.large_string())
        if not len(column):
            return
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self._ends.append(bounds[1:] - bounds[0] + self._data.length)
        if data is not None:
            self._data.append(np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]])

    def finish(self) -> SpooledTexts:
        """Return all texts."""
        return SpooledTexts(self._ends.finish(), self._data.finish())
