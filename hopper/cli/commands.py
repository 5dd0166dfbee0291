"""All subcommands. Each has a module, which is imported only when the command is used."""

from __future__ import annotations

import argparse
import importlib
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

import hopper
from hopper.cli.options import CommandParser

COMMANDS: Final = {
    "dataset": "make, import and describe graph directories",
    "metatree": "show the metatree of a typed graph, and how servers would divide it",
    "precompute": "average the neighbours of a typed graph once, for models sehgnn and nars",
    "partition": "divide a graph directory over servers",
    "serve": "serve one server's rows (the same as python -m cache_server)",
    "cache": "profile the reads of rows and their cost, and plan a cache",
    "config": "explain the keys of a configuration, or print their JSON schema",
    "doctor": "check a configuration, this machine and its cluster before training",
    "train": "train here or on several machines: start servers and ranks, and stop them at the end",
    "host": "run one machine's server and ranks, for a scheduler that starts this on each machine",
    "launch": "the former name of train --on ray",
    "predict": "predict labels, probabilities or embeddings of nodes with a trained model",
    "sweep": "train all combinations of listed values at once, reading features once",
    "schedule": "show the time steps of an iteration of the hop engine",
    "plan": "estimate bytes and seconds of each engine on a cluster",
    "bench": "compare engines by measurement",
    "report": "write DIR/report.html: a page about a comparison of engines or a training run",
}
"""The descriptions of the commands, by name. A command and its module have the same name."""


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Build the parser of the command line.

    Parameters
    ----------
    words: the words to parse. Only the command that they name gets its options, since all commands
        together take a second to import. None = all commands get their options.
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
        dest="command", required=True, metavar="COMMAND", parser_class=CommandParser
    )
    command = None if words is None else next((w for w in words if not w.startswith("-")), "")
    for name, text in COMMANDS.items():
        if command in (name, None):
            importlib.import_module(f"hopper.cli.{name}").add_parser(commands, text)
        else:
            commands.add_parser(name, help=text)
    return parser


class _PrintVersions(argparse.Action):
    """Prints the versions in a line and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the versions, and end the command."""
        print(list_versions())
        parser.exit()


def list_versions() -> str:
    """List in one line the versions of Hopper, Python and the libraries that results depend on.

    It reads the metadata of the libraries and imports none of them.
    """
    versions = [f"hopper {hopper.__version__}", f"Python {platform.python_version()}"]
    for library in ("torch", "numpy"):
        try:
            versions.append(f"{library} {metadata.version(library)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{library} is not installed")
    return ", ".join(versions)
