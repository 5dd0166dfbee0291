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
    if table.size:
        stored = np.asarray(table).reshape(len(table), -1).view(np.uint8)
        _read_ahead(stored, stored.ctypes.data, rows, mmap.PAGESIZE, mmap.MADV_WILLNEED)


@kernel
def _read_ahead(
    table: NDArray[np.uint8], address: int, rows: NDArray[np.int64], page: int, advice: int
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
            for offset in range(0, width, page):
                total += table[row, offset]
            total += table[row, width - 1]
    return total
