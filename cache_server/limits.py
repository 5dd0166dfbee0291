"""Defaults of a server's limits, and sizes as people write them, such as "16GiB"."""

from __future__ import annotations

import re
from typing import Final

DEFAULT_THREADS: Final = 16
DEFAULT_DRAIN_SECONDS: Final = 10.0
DEFAULT_SEND_SECONDS: Final = 30.0
IDS_PER_REQUEST: Final = 1 << 20
"""Most ids in one request. A client asks a server how many it accepts."""
_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_size(text: str) -> int | None:
    """Return the bytes of a size such as "800M" or "1.5GiB" (powers of 1024); None = malformed."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    return None if match is None else int(float(match[1]) * 2 ** _UNITS[match[2].upper()])
