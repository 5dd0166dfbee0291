"""Ends a process when the process that started it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Let the kernel send a signal when the thread that started this process ends (Linux).

    If the parent has ended already, no signal would come, so this process exits at once with an
    error.

    Parameters
    ----------
    parent: process id of the parent. The parent passes it, since this process could be too late to
        ask for it.
    number: the signal. Only SIGKILL ends a process that is stopped.

    Raises
    ------
    OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"error: process {parent}, which started this one, has ended")
