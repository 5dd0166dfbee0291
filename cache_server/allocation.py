"""Settings of the C library's allocator for memory that is freed."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK_BYTES: Final = 32 << 20
_KEPT_TOTAL_BYTES: Final = 128 << 20


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for reuse instead of returning them to the kernel.

    Servers allocate a chunk per reply and ranks tens of megabytes per iteration. The kernel zeroes
    every new page, which costs more than filling it. Does nothing under another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_TOTAL_BYTES)
