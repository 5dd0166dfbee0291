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
_memcpy = types.ExternalFunction("memcpy", types.uintp(types.voidptr, types.voidptr, types.uintp))


def read_ahead(table: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Read the pages of some rows into memory while other threads run.

    Page faults would read one page after another. Here the kernel is told of many pages first, in
    the order in which the table has them, and reads them concurrently.
    """
    _read_rows(table, rows, np.empty((0, 0), np.uint8))


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
        _read_rows(table, rows, out.reshape(len(out), -1).view(np.uint8), places)


def read_ranges_ahead(
    array: NDArray[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> None:
    """Read ranges of entries of an array [n] as :func:`read_ahead` reads rows, of long ones the
    first part."""
    some, size = stops > starts, array.itemsize
    begins, ends = np.sort(starts[some]) * size, np.sort(stops[some]) * size
    if begins.size:
        ends = np.minimum(ends, begins + _LARGEST)
        _read(array, begins, ends, np.empty((0, 0), np.uint8), begins[:0])


def _read_rows(
    table: NDArray[Any],
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
    places: NDArray[np.int64] | None = None,
) -> None:
    if table.size and rows.size:
        width, order = table.nbytes // len(table), np.argsort(rows)
        begins = rows[order] * width
        _read(table, begins, begins + width, out, order if places is None else places[order])


def _read(
    array: NDArray[Any],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint8],
    places: NDArray[np.int64],
) -> None:
    stored = np.asarray(array).reshape(-1).view(np.uint8)
    advice = mmap.PAGESIZE, mmap.MADV_WILLNEED
    _read_pages(stored, stored.ctypes.data, begins, ends, out, places, *advice)


@kernel
def _read_pages(
    stored: NDArray[np.uint8],
    address: int,
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint8],
    places: NDArray[np.int64],
    page: int,
    advice: int,
) -> int:
    """Ask for the pages of ascending ranges of bytes, and read or copy those that were asked for
    before."""
    # The sum is returned so that the compiler cannot leave out the reads.
    total, done, asked = 0, 0, 0
    while done < begins.size:
        before, nbytes = asked, 0
        while asked < begins.size and nbytes < _AHEAD_BYTES:
            first = (address + begins[asked]) // page * page
            last = address + ends[asked]
            asked += 1
            while asked < begins.size:
                begin, end = address + begins[asked], address + ends[asked]
                if begin > last + _GAP * page or end > first + _LARGEST:
                    break
                last = max(last, end)
                asked += 1
            _madvise(first, last - first, advice)
            nbytes += last - first
        for i in range(done, before):
            if out.size:
                _memcpy(out[places[i]].ctypes, stored[begins[i] :].ctypes, ends[i] - begins[i])
                continue
            for offset in range(begins[i], ends[i], page):
                total += stored[offset]
            total += stored[ends[i] - 1]
        done = before
    return total
