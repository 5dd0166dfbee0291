"""Reads many rows of a mapped table from disk at once."""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from cache_server.kernel import kernel

_AHEAD: Final = 512
"""rows that are requested before the first is waited for; a disk needs a few dozen to be busy"""

_madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


def read_ahead(table: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Read the pages of some rows into memory while other threads run.

    Page faults would read one page after another. Here the kernel is told of many pages first, and
    reads them concurrently.
    """
    _read(table, rows, np.empty((0, 0), np.uint8))


def take_ahead(table: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Copy some rows to ``out``, [rows, ...], as :func:`read_ahead` reads them.

    A row is copied as soon as it is there. Of a table that does not fit memory, pages that are read
    for many rows first are gone again before the rows are copied.
    """
    if rows.size:
        _read(table, rows, out.reshape(rows.size, -1).view(np.uint8))


def _read(table: NDArray[Any], rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    if table.size:
        stored = np.asarray(table).reshape(len(table), -1).view(np.uint8)
        advice = mmap.PAGESIZE, mmap.MADV_WILLNEED
        _read_pages(stored, stored.ctypes.data, rows, out, *advice)


@kernel
def _read_pages(
    table: NDArray[np.uint8],
    address: int,
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
    page: int,
    advice: int,
) -> int:
    # The sum is returned so that the compiler cannot leave out the reads.
    total, width = 0, table.shape[1]
    for i in range(rows.size + _AHEAD):
        if i < rows.size:
            begin = address + rows[i] * width
            first = begin // page * page
            _madvise(first, begin + width - first, advice)
        if i >= _AHEAD:
            row = rows[i - _AHEAD]
            if out.size:
                out[i - _AHEAD] = table[row]
                continue
            for offset in range(0, width, page):
                total += table[row, offset]
            total += table[row, width - 1]
    return total
