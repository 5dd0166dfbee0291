"""All subcommands: one file each."""

from __future__ import annotations

import argparse

from hopper.cli import (
    bench,
    cache,
    dataset,
    metatree,
    partition,
    precompute,
    report,
    schedule,
    serve,
    sweep,
    train,
)

_COMMANDS = (
    *(dataset, metatree, precompute, partition, serve, cache),
    *(train, sweep, schedule, bench, report),
)


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
