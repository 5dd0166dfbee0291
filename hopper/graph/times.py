"""Times as people write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def parse_time(text: str) -> int:
    """An integer as it is, or a date (ISO 8601, UTC where it says no more) in seconds since 1970.

    Raises
    ------
    ValueError: it is neither, or not of 64 bits; says what was expected.
    """
    try:
        found = int(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("an integer, or a date such as 2026-05-31") from None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        found = math.floor(date.timestamp())
    if not -(2**63) <= found < 2**63:
        raise ValueError("an integer of 64 bits")
    return found
