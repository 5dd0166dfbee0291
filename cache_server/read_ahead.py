"""Rows of a mapped table that memory does not hold, read from the disk many at a time."""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from cache_server.kernel import kernel

_AHEAD: Final = 512
"""rows that are asked for before the first is waited for; a disk needs a few dozen to be busy"""

_madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


def read_ahead(table: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Have the pages of some rows read into memory; other threads run meanwhile.

    By page faults a thread waits for one page after another; here the kernel is told of many
    before, and reads them all at once.

    Parameters
    ----------
    table: [n, ...], C-contiguous, mapped. rows: [k], in range.
    """
    if table.size:
        stored = np.asarray(table).reshape(len(table), -1).view(np.uint8)
        _read_ahead(stored, stored.ctypes.data, rows, mmap.PAGESIZE, mmap.MADV_WILLNEED)


@kernel
def _read_ahead(
    table: NDArray[np.uint8], address: int, rows: NDArray[np.int64], page: int, advice: int
) -> int:
    # The sum is returned, so that reading is not left out.
    found, width = 0, table.shape[1]
    for i in range(rows.size + _AHEAD):
        if i < rows.size:
            begin = address + rows[i] * width
            first = begin // page * page
            _madvise(first, begin + width - first, advice)
        if i >= _AHEAD:
            row = rows[i - _AHEAD]
            for place in range(0, width, page):
                found += table[row, place]
            found += table[row, width - 1]
    return found
