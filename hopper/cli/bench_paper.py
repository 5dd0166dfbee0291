"""``hopper bench paper`` and ``hopper bench peers``: hand their words to the papers' experiments,
which a checkout has in ``benchmarks/paper`` and an installed Hopper does not."""

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
PEERS_EXPERIMENT: Final = "baselines"
_FILE: Final = Path(*PLUG_IN.split(".")).with_suffix(".py")


def add_parser(kinds: Any) -> None:
    """Add the kinds to ``hopper bench``. Their options are the plug-in's, which is not loaded
    before the command runs."""
    _add(
        *(kinds, "paper", ()),
        "an experiment of a paper or of Hopper's own: result, picture and page "
        "(in a checkout of Hopper)",
    )
    _add(
        *(kinds, "peers", (PEERS_EXPERIMENT,)),
        "Hopper's engines beside baselines and those other systems that are there: the same as "
        f"`hopper bench paper {PEERS_EXPERIMENT}`",
    )


def _add(kinds: Any, name: str, words: tuple[str, ...], text: str) -> None:
    parser: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=text,
        # No word can begin so: every option is a word for the plug-in, --help too.
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=_run, first_words=words, takes_overrides=True)


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
    words = [*given.first_words, *given.words]
    return int(load_plug_in().run(words, given.overrides))
