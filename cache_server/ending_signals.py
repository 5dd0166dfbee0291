"""Waits for the signals that end a server."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class EndingSignals:
    """Catches SIGTERM and SIGINT from now on, until this process ends.

    They are not blocked: libraries may have started threads that block nothing, and through one of
    these the kernel would end the process whenever the main thread is not waiting at that moment,
    for example just after SIGCONT. The handler does nothing, since it could deadlock if it ran
    while its thread held a lock that it needs. Python itself writes the signal's number to a pipe.

    Must be made in the main thread.
    """

    def __init__(self) -> None:
        self._numbers, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in _ENDING:
            signal.signal(number, _do_nothing)

    def wait(self) -> None:
        """Return once one of the signals has come, or at once if one has come already."""
        while os.read(self._numbers, 1)[0] not in _ENDING:
            pass


def _do_nothing(_number: int, _frame: Any) -> None:
    pass
