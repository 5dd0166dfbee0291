"""Copying rows of one table to given places of another, without a table in between."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray


def copy_rows(
    table: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]
) -> None:
    """``out[places] = table[rows]``; other threads run meanwhile.

    Parameters
    ----------
    table, out: [n, dim] and [m, dim] of one dtype, C-contiguous. rows, places: [k], in range.
    """
    word = _widest_word(table.shape[1] * table.itemsize)
    _copy(np.asarray(table).view(word), rows, out.view(word), places)


def _widest_word(row_bytes: int) -> type[np.unsignedinteger[Any]]:
    for word in (np.uint64, np.uint32, np.uint16):
        if row_bytes % np.dtype(word).itemsize == 0:
            return word
    return np.uint8


@numba.njit(cache=True, nogil=True)
def _copy(
    table: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]
) -> None:
    for i in range(rows.size):
        row, place = rows[i], places[i]
        for j in range(table.shape[1]):
            out[place, j] = table[row, j]
