"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the thread that started this process ends (Linux).

    Raises
    ------
    OSError: the kernel refuses.
    """
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        # The parent ended before the request was made: no signal will come.
        signal.raise_signal(signal.SIGTERM)
