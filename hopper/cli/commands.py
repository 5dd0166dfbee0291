"""All subcommands: one module each, which is imported when its command is asked for."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any, Final

from hopper.cli.overrides import OverridableParser

COMMANDS: Final = {
    "dataset": "make, import and look at graph directories",
    "metatree": "show the metatree of a typed graph and how servers would divide it",
    "precompute": "average the neighbours of a typed graph once, for sehgnn and nars",
    "partition": "divide a graph directory over servers",
    "serve": "serve one server's rows (the same as python -m cache_server)",
    "cache": "profile visits and penalties of rows that may be missing, and plan a cache",
    "config": "explain the keys of a configuration, or print their JSON schema",
    "doctor": "look for what is wrong before anyone trains",
    "train": "train on this machine: starts servers and ranks, and takes them down again",
    "launch": "train on a cluster: places servers and ranks on its machines, and takes them down "
    "again",
    "predict": "predict labels, probabilities or embeddings of nodes with a trained model",
    "sweep": "train all combinations of listed values at once, over features read once",
    "schedule": "show the time steps of an iteration of the hop engine",
    "plan": "foretell bytes and seconds of every engine on a cluster",
    "bench": "measure engines against each other",
    "report": "write DIR/report.html: one page about an A/B or a training run",
}
"""what each does, by the name of the command and of its module"""


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line.

    Parameters
    ----------
    words: what will be parsed: only the options of the command that it names are made, because
        those of all commands together take a second to import. None = the options of all commands.
    """
    parser = argparse.ArgumentParser(
        prog="hopper",
        description="Train graph neural networks whose features do not fit one machine.",
    )
    parser.add_argument(
        "--version",
        action=_PrintVersions,
        nargs=0,
        help="show the versions of Hopper, Python, torch and numpy",
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=OverridableParser
    )
    asked = None if words is None else next((w for w in words if not w.startswith("-")), "")
    for name, text in COMMANDS.items():
        if asked in (name, None):
            importlib.import_module(f"hopper.cli.{name}").add_parser(commands, text)
        else:
            commands.add_parser(name, help=text)
    return parser


class _PrintVersions(argparse.Action):
    """Prints a line of versions and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """See argparse."""
        from hopper.cli.versions import list_versions

        print(list_versions())
        parser.exit()
