"""Telling what happens in servers and ranks: lines for people, or lines of JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, Final, Literal

LogFormat = Literal["text", "json"]
_REPEAT_SECONDS: Final = 1.0


class Events:
    """Where a process tells what happens to it, on stderr. Safe to use from several threads.

    Lines for people tell what needs looking after, as warnings. Lines of JSON tell all else, too:
    ``{"unix", "level", "event", "text", ...}``. What happens again within a second is counted
    instead, in ``times`` of the next line of the event. Neither tokens nor keys are told.
    """

    def __init__(self) -> None:
        self._format: LogFormat = "text"
        self._named: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def set_format(self, log_format: LogFormat, **named: Any) -> None:
        """Tell so from now on.

        Parameters
        ----------
        named: what every line of JSON has, such as the rank.
        """
        self._format, self._named = log_format, named

    def warn(self, event: str, text: str, **fields: Any) -> None:
        """Tell what needs looking after."""
        if self._format == "json":
            self._write("warning", event, text, fields)
        else:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def fail(self, event: str, text: str, **fields: Any) -> None:
        """Tell why this process ends; the line for people is the text alone."""
        if self._format == "json":
            self._write("error", event, text, fields)
        else:
            print(text, file=sys.stderr, flush=True)

    def note(self, event: str, text: str, **fields: Any) -> None:
        """Tell what is ordinary, in lines of JSON only."""
        if self._format != "json":
            return
        now = time.monotonic()
        with self._lock:
            if now - self._told.get(event, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
                self._untold[event] = self._untold.get(event, 0) + 1
                return
            self._told[event] = now
            times = 1 + self._untold.pop(event, 0)
        self._write("info", event, text, fields | {"times": times})

    def _write(self, level: str, event: str, text: str, fields: dict[str, Any]) -> None:
        line = {"unix": time.time(), "level": level, "event": event, "text": text}
        print(json.dumps(line | self._named | fields), file=sys.stderr, flush=True)


events: Final = Events()
"""of this process"""
