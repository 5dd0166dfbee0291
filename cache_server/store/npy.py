"""Map .npy files, with checks of dtype and shape: the one way in which the project opens arrays."""

from __future__ import annotations

import mmap
import stat
import threading
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike, NDArray

from cache_server.errors import ManifestError

NPY_ERRORS: Final = (
    ValueError,
    TypeError,
    EOFError,
    SyntaxError,
    MemoryError,
    RecursionError,
    OverflowError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""what numpy raises for a file that is no .npy file or has a damaged header"""

_READING_HEADERS: Final = threading.Lock()
"""Lets one thread at a time read a header. numpy uses Python's own parser for it, which may fail in
CPython 3.11 when several threads are in it (python/cpython, issue 106905)."""


class ArrayFileError(Exception):
    """A file does not hold the array that was expected; names file, expected and given."""


def map_array(
    file: Path,
    what: str,
    dtypes: DTypeLike | tuple[DTypeLike, ...] = (),
    shapes: tuple[tuple[int, ...] | None, ...] = (),
) -> NDArray[Any]:
    """Map a .npy file read-only; only its header is read.

    Parameters
    ----------
    what: what the array is, for errors.
    dtypes: the dtypes it may have (native byte order); none = any but objects.
    shapes: the shapes it may have, None for any [n]; none = any.

    Returns
    -------
    A read-only memory map, or an empty array where there is nothing to map.

    Raises
    ------
    ArrayFileError: the file is missing, is not a C-ordered .npy file, is shorter than its header
        says, or has another dtype or shape. The text is one line.
    """
    where = f"{file}: {what}" if what else f"{file}"
    try:
        # Opening a pipe would wait until something writes to it.
        if not stat.S_ISREG(file.stat().st_mode):
            raise ArrayFileError(f"{where}: expected a file, found something else")
        with _READING_HEADERS, file.open("rb") as stream:
            shape, is_fortran, dtype = _read_header(stream)
            if dtype.hasobject:
                raise ValueError("Object arrays are not read")
            order: Literal["F", "C"] = "F" if is_fortran else "C"
            # An empty file region cannot be mapped.
            array = (
                np.empty(shape, dtype)
                if 0 in shape
                else np.memmap(stream, dtype, "r", stream.tell(), shape, order)
            )
    except FileNotFoundError:
        raise ArrayFileError(f"{where}: missing file") from None
    except (OSError, *NPY_ERRORS) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ArrayFileError(f"{where}: not a readable .npy file: {reason}") from error
    allowed = [np.dtype(of) for of in (dtypes if isinstance(dtypes, tuple) else (dtypes,))]
    if allowed and dtype not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ArrayFileError(f"{where}: expected dtype {expected}, given {dtype}")
    if shapes and shape not in shapes and not (None in shapes and len(shape) == 1):
        expected = " or ".join("[n]" if each is None else str(list(each)) for each in shapes)
        raise ArrayFileError(f"{where}: expected shape {expected}, given {list(shape)}")
    if is_fortran and len(shape) > 1:
        raise ArrayFileError(f"{where}: expected C order (row by row), given Fortran order")
    array.flags.writeable = False
    return np.asarray(array)


def map_npy(
    file: Path, dtypes: DTypeLike | tuple[DTypeLike, ...], *shapes: tuple[int, ...] | None
) -> NDArray[Any]:
    """Map an array of a served directory, as :func:`map_array` does; raise ManifestError."""
    try:
        return map_array(file, "", dtypes, shapes)
    except ArrayFileError as error:
        raise ManifestError(str(error)) from error


def map_of(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the memory map that an array is a view of; None = it is no such view."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


def _read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        return npy_format.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy_format.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of the format is not read")
