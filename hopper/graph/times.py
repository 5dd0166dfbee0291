"""Parse times that users write."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def parse_time(text: str) -> int:
    """Parse an integer, or an ISO 8601 date (UTC unless it has a zone), to seconds since 1970.

    Integers are returned as they are, in whatever unit.

    Raises
    ------
    ValueError: it is neither, or does not fit in 64 bits. The text says what was expected.
    """
    try:
        time = int(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("an integer, or a date such as 2026-05-31") from None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        time = math.floor(date.timestamp())
    if not -(2**63) <= time < 2**63:
        raise ValueError("an integer of 64 bits")
    return time
