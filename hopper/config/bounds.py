"""What numbers that are given may be, in a configuration and on the command line alike."""

from __future__ import annotations

from typing import Final

from cache_server import size
from hopper.errors import RequestError

COUNTS: Final = 2**31
"""counts, widths and sizes are below: they go into arrays of 64 bits, and into products of them"""
SEEDS: Final = 2**63
"""seeds are below"""


def is_fanout(number: int) -> bool:
    """Whether a hop can draw so many neighbours: a positive number, or -1 for all."""
    return number == -1 or 0 < number < COUNTS


def parse_size(text: str, name: str = "size") -> int:
    """Bytes of a size such as "800M", "16GiB" or "1.5G" (powers of 1024).

    Parameters
    ----------
    name: what it is, for the error.

    Raises
    ------
    RequestError: not such a size.
    """
    found = size.parse_size(text)
    if found is None:
        raise RequestError(f"{name}: expected a number and a unit (K, M, G, T), given {text!r}")
    return found
