"""The option ``--metapath``, which several commands have."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_metapath_option(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Add the option; ``prefix`` begins its help."""
    parser.add_argument(
        "--metapath",
        action="append",
        default=[],
        metavar="R,R,...",
        help=f"{prefix}follow these relations alone, from the target outwards; may be given again",
    )


def split_metapaths(words: Sequence[str]) -> list[list[str]]:
    """The relations of every path."""
    return [[word.strip() for word in path.split(",")] for path in words]
