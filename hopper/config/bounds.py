"""Bounds of numbers, both in a configuration and on the command line."""

from __future__ import annotations

from typing import Final

from cache_server import limits
from hopper.errors import RequestError

COUNTS: Final = 2**31
"""Counts, widths and sizes are below this. They and their products must fit 64-bit integers."""
SEEDS: Final = 2**63
"""Seeds are below this."""


def is_fanout(number: int) -> bool:
    """Return whether a number is a valid fanout: positive and below 2**31, or -1 for all."""
    return number == -1 or 0 < number < COUNTS


def parse_size(text: str, name: str = "size") -> int:
    """Convert a size such as "800M", "16GiB" or "1.5G" to bytes. Units are powers of 1024.

    Parameters
    ----------
    name: what the size is called in the error.

    Raises
    ------
    RequestError: the text is not a size.
    """
    nbytes = limits.parse_size(text)
    if nbytes is None:
        raise RequestError(f"{name}: expected a number and a unit (K, M, G, T), given {text!r}")
    return nbytes
