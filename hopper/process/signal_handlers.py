"""Handling signals while a context lasts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from hopper.errors import RunEnded

TO_END: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that tell a process to end."""
Handler = Callable[[int, FrameType | None], None]
_AGAIN_SECONDS: Final = 0.05


class EndedBySignal(KeyboardInterrupt):
    """A signal told this process to end. The text says so.

    Attributes
    ----------
    code: the exit code of a process that ends therefore, 128 and the signal's number.
    """

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {name}")
        self.number = number
        self.code = 128 + number


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
def defer_signals() -> Iterator[None]:
    """Delay signals to end until the end of the context, so that they cannot interrupt it.

    Other threads than the main one get no signals, so nothing changes there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    try:
        with handle_signals(TO_END, lambda number, _frame: arrived.append(number)):
            yield
    finally:
        for number in dict.fromkeys(arrived):
            signal.raise_signal(number)


@contextmanager
def recorded_signals() -> Iterator[Callable[[], None]]:
    """Record the signals that tell a run to end, while the context lasts; yield a function that
    raises RunEnded, which names the first signal, if one has arrived.

    A handler that raised could do so while a process is being started, or be lost in a library. The
    main thread must enter the context. It raises RunEnded at its end, if a signal has come.
    """
    numbers: list[int] = []

    def check() -> None:
        if numbers:
            raise RunEnded(signal.Signals(numbers[0]))

    with handle_signals(TO_END, lambda number, _frame: numbers.append(number)):
        yield check
    check()


@contextmanager
def end_on_signals() -> Iterator[list[int]]:
    """Raise :class:`EndedBySignal` on a signal to end, so that folders and processes are cleared.

    A signal that another handler takes, or that is ignored (nohup), stays so. In other threads than
    the main one, nothing changes.

    Python alone would not always end. While torch is imported, the process ends at once, since
    torch's code would abort it. While an object is destroyed, Python drops exceptions. The signal
    is then sent again a moment later.

    Yields
    ------
    The signals that have arrived. Libraries may turn the exception into one of their own.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return

    def end(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        error = EndedBySignal(number)
        if _imports_torch(frame):
            print(error, file=sys.stderr, flush=True)
            os._exit(error.code)
        raise error

    def send_again(dropped: Any) -> None:
        """Send a signal again if Python drops its exception in a place that cannot raise."""
        if isinstance(dropped.exc_value, EndedBySignal):
            words = (os.getpid(), dropped.exc_value.number)
            timer = threading.Timer(_AGAIN_SECONDS, os.kill, words)
            timer.daemon = True
            timer.start()
        else:
            before(dropped)

    by_default = (signal.SIG_DFL, signal.default_int_handler)
    before, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        with handle_signals([kind for kind in TO_END if signal.getsignal(kind) in by_default], end):
            yield arrived
    finally:
        sys.unraisablehook = before


def _imports_torch(frame: FrameType | None) -> bool:
    """Return whether a module of torch is being imported in this frame or in one that called it."""
    names = set()
    while frame is not None:
        names.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            names.add("import")
        frame = frame.f_back
    return {"import", "torch"} <= names
