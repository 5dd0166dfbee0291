"""How a process treats memory that it frees."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK_BYTES: Final = 32 << 20
_KEPT_TOTAL_BYTES: Final = 128 << 20


def keep_freed_memory() -> None:
    """Reuse freed memory, where glibc would unmap large blocks and fault them in again each time.

    Servers allocate a chunk per reply and ranks tens of megabytes per iteration; zeroing fresh
    pages costs more than filling them. Does nothing with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_TOTAL_BYTES)
