"""Kernels that read rows of a table while other threads run."""

from __future__ import annotations

import mmap
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.kernel_threads import threads_for


def copy_rows(
    table: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]
) -> None:
    """``out[places] = table[rows]``; other threads run meanwhile.

    Parameters
    ----------
    table, out: [n, dim] and [m, dim] of one dtype, C-contiguous. rows, places: [k], in range.
    """
    word = _widest_word(table.shape[1] * table.itemsize)
    with threads_for(rows.size):
        _copy(np.asarray(table).view(word), rows, out.view(word), places)


def read_pages(table: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Have the pages of some rows of a mapped table read into memory; other threads run meanwhile.

    Parameters
    ----------
    table: [n, dim], C-contiguous. rows: [k], in range.
    """
    if table.size:
        _touch(np.asarray(table).view(np.uint8), rows, mmap.PAGESIZE)


def _widest_word(row_bytes: int) -> type[np.unsignedinteger[Any]]:
    for word in (np.uint64, np.uint32, np.uint16):
        if row_bytes % np.dtype(word).itemsize == 0:
            return word
    return np.uint8


@kernel(parallel=True)
def _copy(
    table: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]
) -> None:
    for i in numba.prange(rows.size):
        row, place = rows[i], places[i]
        for j in range(table.shape[1]):
            out[place, j] = table[row, j]


@kernel
def _touch(table: NDArray[np.uint8], rows: NDArray[np.int64], page: int) -> int:
    # The sum is returned, so that reading is not left out.
    found, last = 0, table.shape[1] - 1
    for row in rows:
        for place in range(0, last, page):
            found += table[row, place]
        found += table[row, last]
    return found
