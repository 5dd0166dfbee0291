"""Open, create and write the .npy files of a directory, and pass through them in pieces."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike, NDArray

from cache_server.errors import ManifestError
from cache_server.store.npy import map_array, map_of
from hopper.errors import GraphError
from hopper.graph.memory_budget import memory_budget

HEADER_BYTES: Final = 128
"""Length of the header that numpy writes before the data of the arrays used here."""
BLOCK_BYTES: Final = 16 << 20
"""Largest piece, in bytes, in which an array is passed through."""


def open_array(
    file: Path,
    field: str,
    dtypes: DTypeLike | tuple[DTypeLike, ...],
    *shapes: tuple[int, ...] | None,
) -> NDArray[Any]:
    """Map a .npy file read-only, as :func:`cache_server.store.npy.map_array` does."""
    try:
        return map_array(file, dtypes, *shapes, what=field)
    except ManifestError as error:
        raise GraphError(str(error)) from error


def create_array(file: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Create a .npy file of zeros and its folder, reserve disk space, and map it for writing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if 0 in shape:
        empty: NDArray[Any] = np.empty(shape, dtype)
        np.save(file, empty, allow_pickle=False)
        return empty
    array = npy_format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
    with name_in_errors(file), file.open("r+b") as stream:
        # A hole that the disk cannot fill later would kill the process.
        os.posix_fallocate(stream.fileno(), 0, os.fstat(stream.fileno()).st_size)
    return array


@contextmanager
def open_range_writer(file: Path) -> Iterator[Callable[[int, NDArray[Any]], None]]:
    """Yield a function ``write(first, values)`` that writes a range of a one-dimensional .npy file.

    A map writes whole pages back; this leaves the bytes beside a range alone. So several machines
    may write ranges of one file on a shared file system.
    """
    with name_in_errors(file), file.open("r+b") as stream:

        def write(first: int, values: NDArray[Any]) -> None:
            stream.seek(HEADER_BYTES + first * values.itemsize)
            stream.write(np.ascontiguousarray(values).data)

        yield write


def save_array(file: Path, array: NDArray[Any], dtype: DTypeLike | None = None) -> None:
    """Write an array in C order, a piece at a time, with another dtype if one is given."""
    out = create_array(file, array.dtype if dtype is None else dtype, array.shape)
    for first, rows in iter_pieces(array):
        out[first : first + len(rows)] = rows
        release_pages(out)


def iter_pieces(array: NDArray[Any], rows: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield pieces of an array with their first rows, and give back the pages of each; a piece has
    ``rows``, or else as many as :mod:`hopper.graph.memory_budget` allows."""
    size = min(BLOCK_BYTES, memory_budget().chunk)
    step = rows or max(1, size // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
        release_pages(array)


def find_first(array: NDArray[Any], is_wrong: Callable[[int, Any], NDArray[np.bool_]]) -> int:
    """Return the first index for which ``is_wrong(first, piece)`` is true, or -1."""
    for first, piece in iter_pieces(array):
        wrong = np.flatnonzero(is_wrong(first, piece))
        if wrong.size:
            return first + int(wrong[0])
    return -1


def release_pages(*arrays: NDArray[Any]) -> None:
    """Release the pages of mapped files from this process's memory; what was written stays.

    Until the kernel drops them by itself, they count as memory of the process, which would seem to
    need a whole graph. Private maps, which would lose what was written, stay as they are.
    """
    for array in arrays:
        base: Any = array
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        mapped = map_of(array)
        if mapped is not None and getattr(base, "mode", "r") != "c":
            mapped.madvise(mmap.MADV_DONTNEED)


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Add ``path`` to an ``OSError`` without a file name, such as that of a failed write."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def array_bytes(dtype: DTypeLike, shape: tuple[int, ...]) -> int:
    """Return the bytes on disk of a .npy file with this dtype and shape."""
    return HEADER_BYTES + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object))
