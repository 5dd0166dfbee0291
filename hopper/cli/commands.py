"""All subcommands: one file each."""

from __future__ import annotations

import argparse

from hopper.cli import (
    bench,
    cache,
    dataset,
    doctor,
    launch,
    metatree,
    partition,
    plan,
    precompute,
    predict,
    report,
    schedule,
    serve,
    sweep,
    train,
)
from hopper.cli.overrides import OverridableParser

_COMMANDS = (
    *(dataset, metatree, precompute, partition, serve, cache),
    *(doctor, train, launch, predict, sweep, schedule, plan, bench, report),
)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="hopper",
        description="Train graph neural networks whose features do not fit one machine.",
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=OverridableParser
    )
    for module in _COMMANDS:
        module.add_parser(commands)
    return parser
