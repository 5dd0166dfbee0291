"""Mapped tables whose rows are read here and there."""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.available_memory import available_memory

_SHARE_OF_MEMORY: Final = 0.5


def read_rows_alone(table: NDArray[Any]) -> bool:
    """Let the kernel read nothing around the rows of a mapped table that memory does not hold;
    whether it is one.

    Around each row that is not in memory the kernel reads up to megabytes, which push out others.
    A table that fits had better be read in large pieces, since all of it stays.
    """
    if table.nbytes <= _SHARE_OF_MEMORY * available_memory():
        return False
    base: Any = table
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap):
        return False
    base.madvise(mmap.MADV_RANDOM)
    return True
