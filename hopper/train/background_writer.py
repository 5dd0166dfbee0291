"""Files that are written beside training, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Runs one piece of writing after the other in a thread; whoever begins the next one waits for
    the one before."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Write while the caller goes on; raises as :meth:`wait`."""
        self.wait()

        def run() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error

        # A run that has failed does not wait for its disk.
        self._thread = threading.Thread(target=run, name="hopper-checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until what was begun is written.

        Raises
        ------
        Whatever writing it has raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
