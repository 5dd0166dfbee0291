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

GROUPS: Final = {
    "start": {
        "dataset": "make or import a graph; fetch partitioned ones; average neighbours once",
        "partition": "divide a graph over servers",
        "train": "train here or on several machines: start servers and ranks, and end them",
        "predict": "predict labels, probabilities or embeddings of nodes with a trained model",
    },
    "choose": {
        "bench": "compare engines by measurement, after a check that they agree",
        "plan": "estimate bytes and seconds of each engine on a cluster",
        "sweep": "train all combinations of listed values at once, reading features once",
        "report": "write DIR/report.html: a page about a comparison of engines or a training run",
    },
    "check": {
        "doctor": "check a configuration, this machine and its cluster before training",
        "inspect": "look at a graph, a metatree, the time steps of hop, or what caches would keep",
        "config": "explain the keys of a configuration, print their JSON schema, or begin one",
    },
    "cluster": {
        "serve": "serve one server's rows (the same as python -m cache_server)",
        "host": "run one machine's server and ranks, for a scheduler that starts this on each",
    },
}
"""The descriptions of the commands, by group and name. A command and its module have the same
name."""
COMMANDS: Final = {name: text for group in GROUPS.values() for name, text in group.items()}
_CHECKOUT: Final = "python -m benchmarks."
FORMER_NAMES: Final = {
    "bench ab": "hopper bench",
    "bench faults": f"{_CHECKOUT}faults",
    "bench paper": f"{_CHECKOUT}paper NAME",
    "bench peers": f"{_CHECKOUT}paper baselines",
    "cache plan": "hopper inspect cache CONFIG --size SIZE",
    "cache profile": "hopper inspect cache CONFIG --profile",
    "config --explain": "hopper config explain",
    "config --schema": "hopper config schema",
    "dataset info": "hopper inspect graph",
    "launch ray": "hopper train CONFIG --on ray",
    "metatree": "hopper inspect metatree",
    "precompute": "hopper dataset precompute",
    "schedule": "hopper inspect schedule",
}
"""By former command, the present one, which answers who still uses the former."""


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Build the parser of the command line.

    Parameters
    ----------
    words: the words to parse. Only the command that they name gets its options, since all commands
        together take a second to import. None = all commands get their options.
    """
    parser = argparse.ArgumentParser(
        prog="hopper",
        usage="hopper [-h] [--version] COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train graph neural networks whose features do not fit one machine.\n\n"
        + "\n\n".join(
            "\n".join((f"{group}:", *(f"  {name:<11}{text}" for name, text in commands.items())))
            for group, commands in GROUPS.items()
        ),
        epilog="`hopper COMMAND --help` has the options of a command.",
    )
    parser.add_argument(
        "--version",
        action=_PrintVersions,
        nargs=0,
        help="show the versions of Hopper, Python, torch and numpy",
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=CommandParser,
        help=argparse.SUPPRESS, prog="hopper",
    )  # fmt: skip
    command = None if words is None else next((w for w in words if not w.startswith("-")), "")
    for name, text in COMMANDS.items():
        if command in (name, None):
            module = importlib.import_module(f"hopper.cli.{name}")
            module.add_options(commands.add_parser(name, help=text))
        else:
            commands.add_parser(name)
    return parser


class _PrintVersions(argparse.Action):
    """Prints the versions in a line and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the versions, those of libraries from their metadata, and end the command."""
        versions = [f"hopper {hopper.__version__}", f"Python {platform.python_version()}"]
        for library in ("torch", "numpy"):
            try:
                versions.append(f"{library} {metadata.version(library)}")
            except metadata.PackageNotFoundError:
                versions.append(f"{library} is not installed")
        print(", ".join(versions))
        parser.exit()


def find_renamed(words: Sequence[str]) -> str | None:
    """Return the error that answers a former name of a command; None if the words begin with no
    such name."""
    for former in (" ".join(words[:2]), " ".join(words[:1])):
        if now := FORMER_NAMES.get(former):
            where = ""
            if now.startswith(_CHECKOUT):
                where = (
                    " in a checkout of Hopper's repository; an installed package does not have "
                    "these experiments"
                )
            return f"`hopper {former}` is now `{now}`{where}"
    return None
