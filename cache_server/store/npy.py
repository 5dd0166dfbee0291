"""Map .npy files, with checks of dtype and shape: the one way in which the project opens arrays."""

from __future__ import annotations

import mmap
import stat
import threading
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

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

    ``dtypes`` and ``shapes`` are those that it may have, None for any [n]; none = any but objects.
    An :class:`ArrayFileError` tells in a line that the file is missing, is not a C-ordered .npy
    file, is shorter than its header says, or has another dtype or shape. ``what`` names the array.
    """
    where = f"{file}: {what}" if what else f"{file}"
    try:
        # Opening a pipe would wait until something writes to it.
        if not stat.S_ISREG(file.stat().st_mode):
            raise ArrayFileError(f"{where}: expected a file, found something else")
        with _READING_HEADERS:
            array: NDArray[Any] = npy_format.open_memmap(str(file), mode="r")
    except FileNotFoundError:
        raise ArrayFileError(f"{where}: missing file") from None
    except (OSError, *NPY_ERRORS) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ArrayFileError(f"{where}: not a readable .npy file: {reason}") from error
    allowed = [np.dtype(of) for of in (dtypes if isinstance(dtypes, tuple) else (dtypes,))]
    if allowed and array.dtype not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ArrayFileError(f"{where}: expected dtype {expected}, given {array.dtype}")
    if shapes and array.shape not in shapes and not (None in shapes and array.ndim == 1):
        expected = " or ".join("[n]" if each is None else str(list(each)) for each in shapes)
        raise ArrayFileError(f"{where}: expected shape {expected}, given {list(array.shape)}")
    if not array.flags.c_contiguous:
        raise ArrayFileError(f"{where}: expected C order (row by row), given Fortran order")
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
