"""Opening .npy files as memory maps."""

from __future__ import annotations

import mmap
import stat
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
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


def map_npy(file: Path, dtype: DTypeLike, *shapes: tuple[int, ...] | None) -> NDArray[Any]:
    """Map a row-major array of little-endian ``dtype`` and one of the shapes; None = any [n]."""
    try:
        # Opening a pipe would block until somebody writes to it.
        if not stat.S_ISREG(file.stat().st_mode):
            raise ManifestError(f"{file}: expected a file, found something else")
        try:
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        except ValueError:
            # An empty array cannot be mapped.
            array = np.load(file, allow_pickle=False)
            if array.size:
                raise
    except OSError as error:
        raise ManifestError(f"{file}: cannot be read: {error.strerror or error}") from error
    except NPY_ERRORS as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ManifestError(f"{file}: is not a complete .npy file: {reason}") from error
    expected = np.dtype(dtype).newbyteorder("<")
    found = getattr(array, "dtype", type(array).__name__)
    if not isinstance(array, np.ndarray) or found != expected:
        raise ManifestError(f"{file}: dtype: expected {expected} (little-endian), found {found}")
    if array.shape not in shapes and not (None in shapes and array.ndim == 1):
        raise ManifestError(f"{file}: shape: expected {shapes[0] or '[n]'}, found {array.shape}")
    if not array.flags.c_contiguous:
        raise ManifestError(f"{file}: order: expected row-major, found Fortran order")
    return array


def map_of(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the memory map that an array is a view of; None = it is no such view."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner
