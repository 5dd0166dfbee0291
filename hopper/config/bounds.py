"""What numbers that are given may be, in a configuration and on the command line alike."""

from __future__ import annotations

from typing import Final

COUNTS: Final = 2**31
"""counts, widths and sizes are below: they go into arrays of 64 bits, and into products of them"""
SEEDS: Final = 2**63
"""seeds are below"""


def is_fanout(number: int) -> bool:
    """Whether a hop can draw so many neighbours: a positive number, or -1 for all."""
    return number == -1 or 0 < number < COUNTS
