"""Copies rows of a table without holding the GIL."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel, read_only
from hopper.device.kernel_threads import threads_for


def copy_rows(
    table: NDArray[Any],
    rows: NDArray[np.integer[Any]],
    out: NDArray[Any],
    places: NDArray[np.integer[Any]],
) -> None:
    """Assign ``table[rows]`` to ``out[places]`` while other threads run.

    ``table`` [n, dim] and ``out`` [m, dim] are C-contiguous and of one dtype; ``rows`` and
    ``places`` [k] are in range.
    """
    words, row_bytes = (np.uint64, np.uint32, np.uint16, np.uint8), table.shape[1] * table.itemsize
    word = next(word for word in words if row_bytes % np.dtype(word).itemsize == 0)
    # numba would compile again for every dtype of row numbers, which takes seconds. Row numbers are
    # few bytes beside those of rows.
    sources, goals = (read_only(ids.astype(np.int64, copy=False)) for ids in (rows, places))
    with threads_for(rows.size):
        _copy(read_only(np.asarray(table).view(word)), sources, out.view(word), goals)


@kernel(parallel=True)
def _copy(
    table: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]
) -> None:
    for i in numba.prange(rows.size):
        row, place = rows[i], places[i]
        for j in range(table.shape[1]):
            out[place, j] = table[row, j]
