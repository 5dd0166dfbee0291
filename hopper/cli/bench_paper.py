"""``hopper bench paper``: hands its words to the papers' experiments, which a checkout has in
``benchmarks/paper`` and an installed Hopper does not."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import hopper
from hopper.errors import RequestError

PLUG_IN: Final = "benchmarks.paper.command"
_FILE: Final = Path(*PLUG_IN.split(".")).with_suffix(".py")


def add_parser(kinds: Any) -> None:
    """Add the kind to ``hopper bench``. Its options are the plug-in's, which is not loaded before
    the command runs."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        "paper",
        help="an experiment of a paper or of Hopper's own: result, picture and page "
        "(in a checkout of Hopper)",
        # No word can begin so: every option is a word for the plug-in, --help too.
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=_run)


def load_plug_in() -> ModuleType:
    """Import the experiments: those beside the package ``hopper``, or below the current folder.

    Raises
    ------
    RequestError: they are in neither place, or need another version of Hopper.
    """
    beside, here = Path(hopper.__file__).resolve().parents[1], Path.cwd()
    root = next((folder for folder in (beside, here) if (folder / _FILE).is_file()), None)
    if root is None:
        raise RequestError(
            f"bench paper: expected the experiments, {_FILE.parent}, in {beside} or {here}, and "
            "found them in neither; they come with a checkout of Hopper's repository and not with "
            "an installed package: clone it, and run this command in its folder"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        return importlib.import_module(PLUG_IN)
    except ImportError as error:
        raise RequestError(
            f"bench paper: {root / _FILE.parent} needs another version of Hopper than "
            f"{beside / 'hopper'}: {error}"
        ) from error


def _run(given: argparse.Namespace) -> int:
    return int(load_plug_in().run(given.words, given.overrides))
