"""Numbers on the command line, within what arrays and files can hold; used as ``type=``.

The bounds are the configuration's, which takes a moment to import: `--help` does without.
"""

from __future__ import annotations

import argparse


def whole(text: str) -> int:
    """A whole number of less than 31 bits; whether it makes sense is for whoever takes it to say.

    Raises
    ------
    argparse.ArgumentTypeError: it is none.
    """
    from hopper.config.bounds import COUNTS

    return _read(text, -COUNTS + 1, COUNTS, "a whole number below 2**31")


def seed(text: str) -> int:
    """A seed, from 0, of less than 63 bits: others would stand for one of these.

    Raises
    ------
    argparse.ArgumentTypeError: it is none.
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
