"""The option ``--metapath`` of several commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_metapath_option(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Add the option. Its help begins with ``prefix``."""
    parser.add_argument(
        "--metapath",
        action="append",
        default=[],
        metavar="R,R,...",
        help=f"{prefix}follow only these relations, from the target outwards; may be repeated",
    )


def split_metapaths(words: Sequence[str]) -> list[list[str]]:
    """Split each path into its relations."""
    return [[word.strip() for word in path.split(",")] for path in words]
