"""What a process asks of the kernel and the C library: its end, and the memory that it keeps."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BLOCK_BYTES: Final = 32 << 20
_KEPT_TOTAL_BYTES: Final = 128 << 20
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Let the kernel send a signal when the thread that started this process ends (Linux).

    If the parent has ended already, this process exits at once with an error. The parent passes its
    process id, since this process could be too late to ask for it. Of signals, only SIGKILL ends a
    process that is stopped.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"error: process {parent}, which started this one, has ended")


def keep_freed_memory(arenas: int = 0) -> None:
    """Let glibc keep freed blocks for reuse instead of returning them to the kernel, which zeroes
    every new page. Servers allocate a chunk per reply and ranks tens of megabytes per iteration.
    What all threads keep grows with the number of ``arenas`` that they share; 0 = eight a core."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_TOTAL_BYTES)
    if arenas:
        mallopt(_M_ARENA_MAX, arenas)


def return_freed_memory() -> None:
    """Return the freed blocks of all threads to the kernel.

    glibc keeps blocks apart for each thread. Where threads come and go that make and free arrays of
    megabytes, it holds more and more of them.
    """
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class EndingSignals:
    """Catches SIGTERM and SIGINT from now on, until this process ends. Main thread only.

    They are not blocked: through a thread of a library that blocks nothing, the kernel would end
    the process whenever the main thread is not waiting at that moment. The handler does nothing,
    since it could deadlock. Python itself writes the signal's number to a pipe.
    """

    def __init__(self) -> None:
        self._numbers, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in _ENDING:
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Return once one of the signals has come, or at once if one has come already."""
        while os.read(self._numbers, 1)[0] not in _ENDING:
            pass
