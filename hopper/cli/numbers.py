"""Numbers on the command line, for ``type=``. Their bounds are those of arrays and files.

The bounds come from the configuration, which takes a moment to import. `--help` does without it.
"""

from __future__ import annotations

import argparse


def whole(text: str) -> int:
    """Read a whole number below 2**31. The caller checks whether it makes sense.

    Raises
    ------
    argparse.ArgumentTypeError: the text is no such number.
    """
    from hopper.config.bounds import COUNTS

    return _read(text, -COUNTS + 1, COUNTS, "a whole number below 2**31")


def seed(text: str) -> int:
    """Read a seed: a whole number from 0, below 2**63. Other numbers would equal one of these.

    Raises
    ------
    argparse.ArgumentTypeError: the text is no such number.
    """
    from hopper.config.bounds import SEEDS

    return _read(text, 0, SEEDS, "a whole number from 0, below 2**63")


def _read(text: str, low: int, high: int, expected: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = high
    if not low <= value < high:
        raise argparse.ArgumentTypeError(f"expected {expected}, given {text!r:.40}")
    return value
