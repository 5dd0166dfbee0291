"""Columns of tables, kept on disk while the tables are read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopper.graph.array_file import blocks, named

_IN_MEMORY: Final = 1 << 20
"""bytes that a column may have before it gets a file"""
_TEXTS: Final = 1 << 16
"""that are decoded at once"""


class Spool:
    """A column that grows: the first MiB of it in memory, more in a file without a name, which the
    kernel removes with the last map of it.

    Parameters
    ----------
    folder: on whose disk the file lies.
    width: columns of a row; 0 = the rows are numbers.
    """

    def __init__(self, folder: Path, dtype: DTypeLike, width: int = 0) -> None:
        self.length = 0
        self._folder, self._dtype, self._width = folder, np.dtype(dtype), width
        self._waiting: list[NDArray[Any]] = []
        self._waiting_bytes = 0
        self._file: Any = None

    def append(self, values: NDArray[Any]) -> None:
        """Add rows: [n] or [n, width], of a dtype that becomes the column's."""
        rows = np.array(values, self._dtype)
        self.length += len(rows)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes > _IN_MEMORY:
            self._write()

    def finish(self) -> NDArray[Any]:
        """All rows: an array, or a read-only map of the file."""
        shape = (self.length, self._width) if self._width else (self.length,)
        if self._file is None:
            parts, self._waiting = self._waiting, []
            return np.concatenate([np.empty((0, *shape[1:]), self._dtype), *parts])
        self._write()
        with self._file as file, named(self._folder):
            file.flush()
            return np.asarray(np.memmap(file, self._dtype, "r", shape=shape))

    def _write(self) -> None:
        with named(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            for rows in self._waiting:
                self._file.write(rows.data if rows.size else b"")
        self._waiting, self._waiting_bytes = [], 0


class SpooledTexts(Sequence[str]):
    """Texts by row, in UTF-8 on disk.

    Parameters
    ----------
    ends: [n] int64, where each text ends in ``data``, [bytes] uint8.
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
            return [self[each] for each in range(*row.indices(len(self)))]
        place = range(len(self))[row]
        first = int(self._ends[place - 1]) if place else 0
        return bytes(self._data[first : self._ends[place]]).decode()

    def __iter__(self) -> Iterator[str]:
        first = 0
        for _, ends in blocks(self._ends, _TEXTS):
            part = bytes(self._data[first : ends[-1]])
            bounds = [0, *(ends - first).tolist()]
            for start, end in pairwise(bounds):
                yield part[start:end].decode()
            first = int(ends[-1])


class TextSpool:
    """Texts that are added as they come."""

    def __init__(self, folder: Path) -> None:
        self._ends, self._data = Spool(folder, np.int64), Spool(folder, np.uint8)

    def append(self, texts: Any) -> None:
        """Add texts, a pyarrow array of strings without nulls."""
        import pyarrow

        column = texts.cast(pyarrow.large_string())
        if not len(column):
            return
        _, offsets, data = column.buffers()
        own = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self._ends.append(own[1:] - own[0] + self._data.length)
        if data is not None:
            self._data.append(np.frombuffer(data, np.uint8)[own[0] : own[-1]])

    def finish(self) -> SpooledTexts:
        """All of them."""
        return SpooledTexts(self._ends.finish(), self._data.finish())
