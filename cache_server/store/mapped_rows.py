"""Memory-mapped tables whose rows are read at random, larger than memory or not."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from cache_server.available_memory import available_memory
from cache_server.store.npy import map_of

_SHARE_OF_MEMORY: Final = 0.5
_SMALL_TABLE_BYTES: Final = 128 << 10
"""the kernel's usual read-ahead, which reads such a table at once and evicts next to nothing"""


def exceed_memory(nbytes: int) -> bool:
    """Return whether so many bytes of tables are too many to stay in memory."""
    return nbytes > _SHARE_OF_MEMORY * available_memory()


def feature_bytes(folder: Path) -> int:
    """Return the bytes of all files of features in a server's folder."""
    return sum(file.stat().st_size for file in folder.glob("*features/**/*.npy"))


def read_rows_alone(table: NDArray[Any], together: int = 0) -> bool:
    """Switch the kernel's read-ahead off for a mapped table that does not fit memory, alone or with
    others of ``together`` bytes; return whether that was done.

    By default the kernel reads up to megabytes around each missing row, which evict other rows.
    """
    # Finding out how much memory is available costs a millisecond of reading files.
    if table.nbytes <= _SMALL_TABLE_BYTES or not exceed_memory(max(table.nbytes, together)):
        return False
    mapped = map_of(table)
    if mapped is None:
        return False
    mapped.madvise(mmap.MADV_RANDOM)
    return True
