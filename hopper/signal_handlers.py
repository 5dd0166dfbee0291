"""Handling signals for a while."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

TO_END: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""by which a process is told to end"""
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handled(kinds: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Let ``handler`` take these signals; the handlers of before return. For the main thread."""
    before = {kind: signal.signal(kind, handler) for kind in kinds}
    try:
        yield
    finally:
        for kind, each in before.items():
            signal.signal(kind, each)


@contextmanager
def deferred(kinds: Sequence[signal.Signals]) -> Iterator[None]:
    """Handle these signals afterwards: what is done cannot be cut in two. For the main thread."""
    arrived: list[int] = []
    try:
        with handled(kinds, lambda number, _frame: arrived.append(number)):
            yield
    finally:
        for number in arrived:
            signal.raise_signal(number)
