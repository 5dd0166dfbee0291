"""Writing files in the background while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Writes in a thread, one job at a time. Beginning a job waits for the one before."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Begin a job. It first waits for the one before, and raises that one's error."""
        self.wait()

        def run() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error

        # A daemon thread, so that a failed run ends without waiting for its disk.
        self._thread = threading.Thread(target=run, name="hopper-checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the job that was begun last has ended, and raise its error if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
