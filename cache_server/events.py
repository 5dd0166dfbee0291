"""The log of servers and ranks on stderr: text for people, or one JSON object a line."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, Final, Literal

LogFormat = Literal["text", "json"]
_REPEAT_SECONDS: Final = 1.0


class Events:
    """Writes a process's events to stderr. Safe to use from several threads.

    The text format has errors, and warnings that begin with the time of day. The JSON format has
    all events, as ``{"unix", "level", "event", "text", ...}``. An ordinary event that repeats
    within a second is not written but counted, in ``times`` of the event's next line. Callers pass
    no tokens or keys.
    """

    def __init__(self) -> None:
        self.format: LogFormat = "text"
        """lines for people, or of JSON"""
        self._common_fields: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._last_written: dict[str, float] = {}
        self._skipped: dict[str, int] = {}

    def set_format(self, log_format: LogFormat, **common_fields: Any) -> None:
        """Set the format of all later lines, and fields of each."""
        self.format, self._common_fields = log_format, common_fields

    def warn(self, event: str, text: str, **fields: Any) -> None:
        """Write a warning in either format."""
        self._write("warning", event, text, fields, f"{time.strftime('%H:%M:%S')}  warning: {text}")

    def fail(self, event: str, text: str, **fields: Any) -> None:
        """Write the error that ends this process; in the text format the line is ``text`` alone."""
        self._write("error", event, text, fields, text)

    def note(self, event: str, text: str, **fields: Any) -> None:
        """Write an ordinary event, in the JSON format only."""
        if self.format != "json":
            return
        now = time.monotonic()
        with self._lock:
            if now - self._last_written.get(event, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
                self._skipped[event] = self._skipped.get(event, 0) + 1
                return
            self._last_written[event] = now
            times = 1 + self._skipped.pop(event, 0)
        self._write("info", event, text, fields | {"times": times})

    def _write(
        self, level: str, event: str, text: str, fields: dict[str, Any], line: str = ""
    ) -> None:
        if self.format == "json":
            entry = {"unix": time.time(), "level": level, "event": event, "text": text}
            line = json.dumps(entry | self._common_fields | fields)
        # Written at once: where Python does not buffer, print() writes the line's end by itself,
        # and a line of another process could come between.
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


events: Final = Events()
"""the log of this process"""
