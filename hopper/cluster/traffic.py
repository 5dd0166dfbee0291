"""Counters of the bytes that servers send to each other, by cause.

Bytes are counted where they are sent. A rank counts its own collectives and messages. A client
counts the replies of feature servers on their behalf. Bytes that stay on a server do not count.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal, get_args

Cause = Literal["feature", "topology", "model", "gradient", "partial", "control"]
CAUSES: tuple[Cause, ...] = get_args(Cause)


class Traffic:
    """Counters of one rank, for use by several threads."""

    def __init__(self, whole: Traffic | None = None) -> None:
        """Make counters at zero, whose bytes the totals of others also count, if any."""
        self._bytes: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self._lock: threading.Lock = whole._lock if whole else threading.Lock()
        self._totals: dict[Cause, int] = whole._totals if whole else dict.fromkeys(CAUSES, 0)

    def apart(self) -> Traffic:
        """Make separate counters for bytes of a later iteration, which :meth:`add` adds here."""
        return Traffic(self)

    def count(self, cause: Cause, sent: int) -> None:
        """Count bytes that were sent."""
        with self._lock:
            self._bytes[cause] += sent
            self._totals[cause] += sent

    @property
    def total(self) -> int:
        """All bytes ever counted here or by counters of :meth:`apart`."""
        return sum(self.totals().values())

    def totals(self) -> dict[Cause, int]:
        """Return all bytes ever counted here or by counters of :meth:`apart`, by cause."""
        with self._lock:
            return dict(self._totals)

    def add(self, sent: Mapping[Cause, int]) -> None:
        """Add bytes that separate counters have counted."""
        with self._lock:
            for cause, count in sent.items():
                self._bytes[cause] += count

    def take(self) -> dict[Cause, int]:
        """Return the bytes by cause since the last call. The counters then restart from zero."""
        with self._lock:
            taken = self._bytes
            self._bytes = dict.fromkeys(CAUSES, 0)
        return taken
