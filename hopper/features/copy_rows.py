"""Kernels that read rows of a table without holding the GIL."""

from __future__ import annotations

import mmap
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel, read_only
from hopper.kernel_threads import threads_for


def copy_rows(
    table: NDArray[Any],
    rows: NDArray[np.integer[Any]],
    out: NDArray[Any],
    places: NDArray[np.integer[Any]],
) -> None:
    """Assign ``table[rows]`` to ``out[places]`` while other threads run.

    Parameters
    ----------
    table, out: [n, dim] and [m, dim] of one dtype, C-contiguous.
    rows, places: [k] integers, the rows of ``table`` and of ``out``, in range.
    """
    word = _widest_word(table.shape[1] * table.itemsize)
    # numba would compile again for every dtype of row numbers, which takes seconds. Row numbers are
    # few bytes beside those of rows.
    sources, goals = (read_only(ids.astype(np.int64, copy=False)) for ids in (rows, places))
    with threads_for(rows.size):
        _copy(read_only(np.asarray(table).view(word)), sources, out.view(word), goals)


def read_pages(table: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Read the pages of [k] int64 rows of a mapped [n, dim] table while other threads run."""
    if table.size:
        _touch(read_only(np.asarray(table).view(np.uint8)), read_only(rows), mmap.PAGESIZE)


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
    # The sum is returned so that the compiler cannot leave out the reads.
    total, last = 0, table.shape[1] - 1
    for row in rows:
        for offset in range(0, last, page):
            total += table[row, offset]
        total += table[row, last]
    return total
