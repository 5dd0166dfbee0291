"""Ending a rank together with the process that started it."""

from __future__ import annotations

import os
import sys
from typing import Final

from cache_server.process import end_with_parent

DIE_WITH_PARENT: Final = "HOPPER_DIE_WITH_PARENT"
"""The environment variable with the id of the process that a rank must end with."""


def follow_parent() -> None:
    """Let this process end with the process that ``HOPPER_DIE_WITH_PARENT`` names, if any.

    The call ends this process if the value is no process id, or not that of its parent.
    """
    parent = os.environ.get(DIE_WITH_PARENT)
    if parent is None:
        return
    if not parent.isdecimal():
        sys.exit(f"error: {DIE_WITH_PARENT}: expected a process id, got {parent!r}")
    end_with_parent(int(parent))
