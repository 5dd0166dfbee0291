"""Bytes between servers, by cause (design.md, invariant 3).

Bytes are counted where they are sent: a rank counts what its own collectives and messages put on
the wire, and each reply of a feature server is counted by the client that asked for it, on the
server's behalf. What stays within a server is not traffic.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal, get_args

Cause = Literal["feature", "topology", "model", "gradient", "partial", "control"]
CAUSES: tuple[Cause, ...] = get_args(Cause)


class Traffic:
    """Counters of one rank; safe to use from several threads."""

    def __init__(self, whole: Traffic | None = None) -> None:
        """``whole``: whose totals this counts into as well; None = its own."""
        self._bytes: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self._lock = threading.Lock()
        self._whole = whole or self
        self._totals: dict[Cause, int] = dict.fromkeys(CAUSES, 0)

    def apart(self) -> Traffic:
        """Counters of what is sent for an iteration to come, to be added here in its turn."""
        return Traffic(self._whole)

    def count(self, cause: Cause, sent: int) -> None:
        """Add bytes put on the wire."""
        with self._lock:
            self._bytes[cause] += sent
        self._whole.raise_total(cause, sent)

    def raise_total(self, cause: Cause, sent: int) -> None:
        """Add bytes to the totals alone."""
        with self._lock:
            self._totals[cause] += sent

    @property
    def total(self) -> int:
        """Bytes that were ever counted here, or apart from here."""
        return sum(self.totals().values())

    def totals(self) -> dict[Cause, int]:
        """:attr:`total` by cause."""
        with self._lock:
            return dict(self._totals)

    def add(self, sent: Mapping[Cause, int]) -> None:
        """Add what was counted apart."""
        with self._lock:
            for cause, each in sent.items():
                self._bytes[cause] += each

    def take(self) -> dict[Cause, int]:
        """The bytes by cause since the last call; starts from zero again."""
        with self._lock:
            taken = self._bytes
            self._bytes = dict.fromkeys(CAUSES, 0)
        return taken
