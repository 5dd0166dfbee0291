"""Mapped tables whose rows are read here and there."""

from __future__ import annotations

import mmap
from typing import Any, Final

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
    mapped = map_of(table)
    if mapped is None:
        return False
    mapped.madvise(mmap.MADV_RANDOM)
    return True


def map_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The map of a file that an array is a view of, if it is one."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner
