"""Ranks that must not outlive the process that started them."""

from __future__ import annotations

import os
import sys
from typing import Final

from cache_server.parent import end_with_parent

DIE_WITH_PARENT: Final = "HOPPER_DIE_WITH_PARENT"
"""the variable that names the process that a rank is to end with"""


def follow_parent() -> None:
    """End with the process that ``HOPPER_DIE_WITH_PARENT`` names, if it names one.

    Ends this process at once where that is not a process id, or its parent has another.
    """
    parent = os.environ.get(DIE_WITH_PARENT)
    if parent is None:
        return
    if not parent.isdecimal():
        sys.exit(f"error: {DIE_WITH_PARENT}: expected a process id, got {parent!r}")
    end_with_parent(int(parent))
