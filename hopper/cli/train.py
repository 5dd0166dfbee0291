"""``hopper train CONFIG.toml [--section.key VALUE ...]``: train on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from hopper.cli.numbers import whole
from hopper.quick_imports import quick_imports


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser(
        "train",
        help=text,
        description="Any key of the configuration can be overridden as --section.key VALUE.",
    )
    parser.add_argument("config", metavar="CONFIG.toml")
    add_restarts(parser, "a rank or a server")
    parser.set_defaults(run=_run, takes_overrides=True)


def add_restarts(parser: argparse.ArgumentParser, lost: str) -> None:
    """Add ``--restarts``.

    Parameters
    ----------
    lost: the processes or machines that a run may lose.
    """
    parser.add_argument(
        "--restarts",
        type=whole,
        default=0,
        metavar="N",
        help=f"restart a run that loses {lost}, at most N times, from the newest checkpoint "
        "(train.checkpoint_every) or else from the beginning (default 0)",
    )


def _run(options: argparse.Namespace) -> int:
    with quick_imports():
        import hopper.train.launch
    hopper.train(options.config, options.overrides, restarts=options.restarts)
    return 0
