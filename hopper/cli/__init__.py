"""The ``hopper`` command: one file a subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cache_server.errors import CacheServerError
from hopper.cli import (
    bench,
    cache,
    dataset,
    metatree,
    partition,
    report,
    schedule,
    serve,
    sweep,
    train,
)
from hopper.errors import HopperError

_COMMANDS = (dataset, metatree, partition, serve, cache, train, sweep, schedule, bench, report)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="hopper",
        description="Train graph neural networks whose features do not fit one machine.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _COMMANDS:
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what was asked, 1 with a text on stderr if it could not."""
    options = build_parser().parse_args(argv)
    try:
        return int(options.run(options))
    except (HopperError, CacheServerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
