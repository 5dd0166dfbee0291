"""Map .npy files, with checks of dtype and shape: the one way in which the project opens arrays."""

from __future__ import annotations

import mmap
import stat
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike, NDArray

from cache_server.errors import ManifestError
from cache_server.sharded_array import ShardedArray

ID_DTYPES: Final = (np.dtype(np.int32), np.dtype(np.int64))
"""dtypes that ids, positions and degrees are stored as"""

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


def map_array(
    file: Path,
    dtypes: DTypeLike | tuple[DTypeLike, ...] = (),
    *shapes: tuple[int, ...] | None,
    what: str = "",
) -> NDArray[Any]:
    """Map a .npy file read-only; only its header is read.

    ``dtypes`` and ``shapes`` are those that it may have, None for any [n]; none = any but objects.
    A :class:`ManifestError` tells in a line that the file is missing, is not a C-ordered .npy file,
    is shorter than its header says, or has another dtype or shape. ``what`` names the array.
    """
    where = f"{file}: {what}" if what else f"{file}"
    try:
        # Opening a pipe would wait until something writes to it.
        if not stat.S_ISREG(file.stat().st_mode):
            raise ManifestError(f"{where}: expected a file, found something else")
        with _READING_HEADERS:
            array: NDArray[Any] = npy_format.open_memmap(str(file), mode="r")
    except FileNotFoundError:
        raise ManifestError(f"{where}: missing file") from None
    except (OSError, *NPY_ERRORS) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ManifestError(f"{where}: not a readable .npy file: {reason}") from error
    allowed = [np.dtype(of) for of in (dtypes if isinstance(dtypes, tuple) else (dtypes,))]
    if allowed and array.dtype not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ManifestError(f"{where}: expected dtype {expected}, given {array.dtype}")
    if shapes and array.shape not in shapes and not (None in shapes and array.ndim == 1):
        expected = " or ".join("[n]" if each is None else str(list(each)) for each in shapes)
        raise ManifestError(f"{where}: expected shape {expected}, given {list(array.shape)}")
    if not array.flags.c_contiguous:
        raise ManifestError(f"{where}: expected C order (row by row), given Fortran order")
    return np.asarray(array)


def map_of(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the memory map that an array is a view of; None = it is no such view."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


MapFile = Callable[[Path, int], NDArray[Any]]
"""Maps a .npy file of :data:`ID_DTYPES` that must have so many entries."""


def shard_file(file: Path, server: int) -> Path:
    """Return the file of one server's entries of an array."""
    return file.with_name(f"{file.stem}-{server}{file.suffix}")


def map_by_node(file: Path, offsets: Sequence[int], map_file: MapFile) -> Any:
    """Map numbers by global id, typed as any array. They are in one file, or in one for each server
    (:func:`shard_file`), and are read as int64, whatever their width there. ``offsets`` are the
    first global id of every server, then the number of nodes."""
    counts = np.diff(offsets).tolist()
    if not file.exists() and shard_file(file, 0).exists():
        return ShardedArray(offsets, lambda i: map_file(shard_file(file, i), counts[i]))
    whole = map_file(file, sum(counts))
    return whole if whole.dtype == np.int64 else ShardedArray((0, whole.size), lambda _: whole)


def map_original_ids(root: Path, node_type: str, offsets: Sequence[int]) -> Any:
    """Map a node type's original ids by global id in a served directory; raise ManifestError."""
    file = root / "maps" / node_type / "original_ids.npy"
    return map_by_node(file, offsets, lambda file, count: map_array(file, ID_DTYPES, (count,)))
