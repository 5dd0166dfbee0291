"""Map the .npy files of a directory, with checks of dtype and shape; create and write them."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike, NDArray

from cache_server.store.npy import NPY_ERRORS, map_of
from hopper.errors import GraphError
from hopper.graph.piece_size import piece_size

HEADER_BYTES = 128
"""Length of the header that numpy writes before the data of the arrays used here."""

BLOCK_BYTES: Final = 16 << 20
"""Largest piece, in bytes, in which an array is passed through."""

_READING_HEADERS: Final = threading.Lock()
"""Lets one thread at a time read a header. numpy uses Python's own parser for it, which may fail in
CPython 3.11 when several threads are in it (python/cpython, issue 106905)."""


def open_array(file: Path, field: str, dtype: DTypeLike, *shapes: tuple[int, ...]) -> NDArray[Any]:
    """Map a .npy file read-only; only its header is read.

    Parameters
    ----------
    field: what the array is, for errors.
    dtype: the dtype it must have (native byte order).
    shapes: the shapes it may have.

    Returns
    -------
    A read-only memory map, or an empty array where there is nothing to map.

    Raises
    ------
    GraphError: the file is missing, is not a C-ordered .npy file, is shorter than its header says,
        or has another dtype or shape. The text names file, field, expected and given.
    """
    try:
        # Opening a pipe would wait until something writes to it.
        if not stat.S_ISREG(file.stat().st_mode):
            raise GraphError(f"{file}: {field}: expected a file, found something else")
        with _READING_HEADERS, file.open("rb") as stream:
            shape, is_fortran, stored_dtype = _read_header(stream)
            if stored_dtype.hasobject:
                raise ValueError("Object arrays are not read")
            # An empty file region cannot be mapped.
            if 0 in shape:
                array = np.empty(shape, stored_dtype)
            else:
                order: Literal["F", "C"] = "F" if is_fortran else "C"
                array = np.memmap(stream, stored_dtype, "r", stream.tell(), shape, order)
    except FileNotFoundError:
        raise GraphError(f"{file}: {field}: missing file") from None
    except (OSError, *NPY_ERRORS) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise GraphError(f"{file}: {field}: not a readable .npy file: {reason}") from error
    if stored_dtype != np.dtype(dtype):
        raise GraphError(f"{file}: {field}: expected dtype {np.dtype(dtype)}, given {stored_dtype}")
    if shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise GraphError(f"{file}: {field}: expected shape {expected}, given {list(shape)}")
    if is_fortran and len(shape) > 1:
        raise GraphError(f"{file}: {field}: expected C order (row by row), given Fortran order")
    array.flags.writeable = False
    return np.asarray(array)


def _read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        return npy_format.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy_format.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of the format is not read")


def create_array(file: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Create a .npy file of zeros, reserve its disk space, and map it for writing.

    Returns
    -------
    A writable memory map, or an empty array where there is nothing to map. The kernel writes its
    pages to disk as it sees fit, so only the pages in use take memory.

    Raises
    ------
    OSError: the disk has too little space.
    """
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

    Raises
    ------
    OSError: the file cannot be written. The error names it.
    """
    with name_in_errors(file), file.open("r+b", buffering=0) as stream:

        def write(first: int, values: NDArray[Any]) -> None:
            remaining = memoryview(np.ascontiguousarray(values).view(np.uint8).data)
            offset = HEADER_BYTES + first * values.itemsize
            while remaining:
                written = os.pwrite(stream.fileno(), remaining, offset)
                remaining, offset = remaining[written:], offset + written

        yield write


def save_array(file: Path, array: NDArray[Any]) -> None:
    """Write an array in C order, a piece at a time; create the folder if it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with name_in_errors(file), file.open("wb") as stream:
        header = npy_format.header_data_from_array_1_0(np.empty((0,), array.dtype))
        npy_format.write_array_header_1_0(stream, header | {"shape": array.shape})
        for _, rows in iter_pieces(array):
            # Not tofile: it reports a full disk without the system's error number.
            stream.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def iter_pieces(array: NDArray[Any], rows: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
    """Iterate over an array in pieces, as pairs of a first row and the rows from there on.

    The pages of a map are given back after each piece.

    Parameters
    ----------
    rows: rows of a piece; None = as many as :mod:`hopper.graph.piece_size` allows.
    """
    size = min(BLOCK_BYTES, piece_size().piece)
    step = rows or max(1, size // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
        release_pages(array)


def release_pages(*arrays: NDArray[Any]) -> None:
    """Release the pages of mapped files from this process's memory; what was written stays.

    The kernel drops such pages by itself when memory is short. Until then they count as memory of
    the process, which would seem to need a whole graph.

    Parameters
    ----------
    arrays: maps of files, or views of them. Other arrays are left as they are. So are private
        maps, because their pages would lose what was written.
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
