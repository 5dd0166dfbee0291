"""Reads many rows of a mapped table from disk at once."""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from cache_server.kernel import kernel

_AHEAD_BYTES: Final = 4 << 20
"""what is asked for before the rows that were asked for earlier are waited for"""
_GAP: Final = 2
"""the most pages without a row that are read with their neighbours, since a disk reads few large
ranges in less time than many single pages"""
_LARGEST: Final = 512 << 10
"""the most bytes of a range; the kernel leaves out what is beyond its own limit"""

_madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


def read_ahead(table: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Read the pages of some rows into memory while other threads run.

    Page faults would read one page after another. Here the kernel is told of many pages first, in
    the order in which the table has them, and reads them concurrently.
    """
    _read(table, rows, np.empty((0, 0), np.uint8))


def take_ahead(
    table: NDArray[Any],
    rows: NDArray[np.int64],
    out: NDArray[Any],
    places: NDArray[np.int64] | None = None,
) -> None:
    """Copy some rows to the ``places`` of ``out`` [m, ...] as :func:`read_ahead` reads them; None =
    to all of them, in order.

    A row is copied as soon as it is there. Of a table that does not fit memory, pages that are read
    for many rows first are gone again before the rows are copied.
    """
    if rows.size:
        _read(table, rows, out.reshape(len(out), -1).view(np.uint8), places)


def _read(
    table: NDArray[Any],
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
    places: NDArray[np.int64] | None = None,
) -> None:
    if table.size:
        stored = np.asarray(table).reshape(len(table), -1).view(np.uint8)
        order = np.argsort(rows)
        goals, advice = order if places is None else places[order], mmap.MADV_WILLNEED
        _read_pages(stored, stored.ctypes.data, rows[order], out, goals, mmap.PAGESIZE, advice)


@kernel
def _read_pages(
    table: NDArray[np.uint8],
    address: int,
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
    places: NDArray[np.int64],
    page: int,
    advice: int,
) -> int:
    """Ask for the pages of some rows, and read or copy those rows that were asked for before."""
    # The sum is returned so that the compiler cannot leave out the reads.
    total, width, copied, asked = 0, table.shape[1], 0, 0
    while copied < rows.size:
        before, nbytes = asked, 0
        while asked < rows.size and nbytes < _AHEAD_BYTES:
            begin = end = (address + rows[asked] * width) // page * page
            while asked < rows.size:
                start = address + rows[asked] * width
                if end > begin and (start > end + _GAP * page or start + width > begin + _LARGEST):
                    break
                end = start + width
                asked += 1
            _madvise(begin, end - begin, advice)
            nbytes += end - begin
        for i in range(copied, before):
            row = rows[i]
            if out.size:
                out[places[i]] = table[row]
                continue
            for offset in range(0, width, page):
                total += table[row, offset]
            total += table[row, width - 1]
        copied = before
    return total
