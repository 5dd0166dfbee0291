"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM when the thread that started this process ends (Linux).

    Ends this process at once, with an error, if its parent is another one by now: then no signal
    would come.

    Parameters
    ----------
    parent: the process id that the parent has told; what this process could ask for itself may be
        too late to be true.

    Raises
    ------
    OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"error: process {parent}, which started this one, has ended")
