"""``hopper bench paper``, ``peers`` and ``faults``: hand their words to what a checkout has in
``benchmarks`` and an installed Hopper does not: the papers' experiments, and fault injection."""

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
FAULTS: Final = "benchmarks.faults.command"
PEERS_EXPERIMENT: Final = "baselines"


def add_parser(kinds: Any) -> None:
    """Add the kinds to ``hopper bench``. Their options are the plug-in's, which is not loaded
    before the command runs."""
    _add(
        *(kinds, "paper", PLUG_IN, ()),
        "an experiment of a paper or of Hopper's own: result, picture and page "
        "(in a checkout of Hopper)",
    )
    _add(
        *(kinds, "peers", PLUG_IN, (PEERS_EXPERIMENT,)),
        "Hopper's engines beside baselines and those other systems that are there: the same as "
        f"`hopper bench paper {PEERS_EXPERIMENT}`",
    )
    _add(
        *(kinds, "faults", FAULTS, ()),
        "let things happen to small runs at random moments: to processes, links, disks, files and "
        "requests (in a checkout of Hopper)",
    )


def _add(kinds: Any, name: str, plug_in: str, words: tuple[str, ...], text: str) -> None:
    parser: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=text,
        # No word can begin so: every option is a word for the plug-in, --help too.
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=_run, plug_in=plug_in, first_words=words, takes_overrides=True)


def load_plug_in(name: str) -> ModuleType:
    """Import a module of a checkout, beside the package ``hopper`` or below the current folder.

    Raises
    ------
    RequestError: it is in neither place, or needs another version of Hopper.
    """
    file = Path(*name.split(".")).with_suffix(".py")
    kind = file.parent.name
    beside, here = Path(hopper.__file__).resolve().parents[1], Path.cwd()
    root = next((folder for folder in (beside, here) if (folder / file).is_file()), None)
    if root is None:
        raise RequestError(
            f"bench {kind}: expected {file.parent}, in {beside} or {here}, and "
            "found it in neither; it comes with a checkout of Hopper's repository and not with "
            "an installed package: clone it, and run this command in its folder"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RequestError(
            f"bench {kind}: {root / file.parent} needs another version of Hopper than "
            f"{beside / 'hopper'}: {error}"
        ) from error


def _run(given: argparse.Namespace) -> int:
    words = [*given.first_words, *given.words]
    return int(load_plug_in(given.plug_in).run(words, given.overrides))
