"""Handling signals while a context lasts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

TO_END: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that tell a process to end."""
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handle_signals(kinds: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Install a handler of signals while the context lasts. The main thread must enter it."""
    before = {number: signal.signal(number, handler) for number in kinds}
    try:
        yield
    finally:
        for number, previous_handler in before.items():
            signal.signal(number, previous_handler)


@contextmanager
def defer_signals(kinds: Sequence[signal.Signals]) -> Iterator[None]:
    """Delay signals to the end of the context, so that they cannot interrupt it.

    The main thread must enter it.
    """
    arrived: list[int] = []
    try:
        with handle_signals(kinds, lambda number, _frame: arrived.append(number)):
            yield
    finally:
        for number in arrived:
            signal.raise_signal(number)
