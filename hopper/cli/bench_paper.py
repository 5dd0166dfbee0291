"""``hopper bench paper``, ``peers`` and ``faults``: the papers' experiments and fault injection.

They pass their words to modules in ``benchmarks``. A checkout of Hopper has this folder, but an
installed package does not.
"""

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
    """Add the kinds to ``hopper bench``.

    The plug-in defines their options. It is loaded when the command runs.
    """
    _add(
        *(kinds, "paper", PLUG_IN, ()),
        "run an experiment of a paper or of Hopper: result, picture and page "
        "(in a checkout of Hopper)",
    )
    _add(
        *(kinds, "peers", PLUG_IN, (PEERS_EXPERIMENT,)),
        "compare Hopper's engines with baselines and other installed systems: the same as "
        f"`hopper bench paper {PEERS_EXPERIMENT}`",
    )
    _add(
        *(kinds, "faults", FAULTS, ()),
        "disturb small runs at random moments: processes, links, disks, files and "
        "requests (in a checkout of Hopper)",
    )


def _add(kinds: Any, name: str, plug_in: str, words: tuple[str, ...], text: str) -> None:
    parser: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=text,
        # No word begins with this character, so options are words for the plug-in, even --help.
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=_run, plug_in=plug_in, first_words=words, takes_overrides=True)


def load_plug_in(name: str) -> ModuleType:
    """Import a module from a checkout: beside the package ``hopper`` or below the current folder.

    Raises
    ------
    RequestError: neither folder has the module, or it needs another version of Hopper.
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


def _run(options: argparse.Namespace) -> int:
    words = [*options.first_words, *options.words]
    return int(load_plug_in(options.plug_in).run(words, options.overrides))
