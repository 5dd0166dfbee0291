"""Imports at the beginning of a process of our own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Let imports run without looks for garbage, and keep what they make out of all later ones.

    torch and what comes with it are half a million objects that live as long as the process:
    looking through them takes a sixth of the time of importing them, and a tenth of a second each
    time that Python does so later. Not for processes that other code has begun.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
