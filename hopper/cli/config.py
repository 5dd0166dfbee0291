"""``hopper config --explain [KEY] | --schema``: the keys of a configuration."""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopper.errors import RequestError

if TYPE_CHECKING:
    from hopper.config.reference import Key


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand; ``text`` says in the list of commands what it does."""
    parser = commands.add_parser(
        "config",
        help=text,
        description="Nothing is read and nothing is started: keys are explained from Hopper's own "
        "source.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="KEY",
        help="print type, bounds, default and meaning of a key (train.epochs), of all keys of a "
        "section (train), or of all keys",
    )
    what.add_argument(
        "--schema",
        action="store_true",
        help="print a JSON schema, by which editors complete and check configurations",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.config.reference import describe_section, list_keys, make_schema, sections

    if options.schema:
        print(json.dumps(make_schema(), indent=1, ensure_ascii=False))
        return 0
    section = ""
    for key in find_keys(list_keys(), options.explain):
        if section != (section := key.name.partition(".")[0]):
            print(_fold(f"[{section}] {describe_section(sections()[section])}", ""), end="\n\n")
        print(explain(key), end="\n\n")
    return 0


def find_keys(keys: Sequence[Key], asked: str) -> list[Key]:
    """The key of a name, those of a section, those whose name is ``asked`` in any section, or, of
    an empty word, all.

    Raises
    ------
    RequestError: there is none.
    """
    asked = asked.strip("[]").removeprefix("--")
    found = [key for key in keys if asked in ("", key.name, *key.name.split("."))]
    if not found:
        names = [name for key in keys for name in (key.name, *key.name.split("."))]
        close = difflib.get_close_matches(asked, list(dict.fromkeys(names)), n=3)
        hint = f"; close to it: {', '.join(close)}" if close else ""
        raise RequestError(f"--explain: expected a key or a section, given {asked!r:.100}{hint}")
    return found


def explain(key: Key) -> str:
    """A key's name, type, bounds and default, and below them what it means."""
    told = ", ".join(filter(None, (key.type, key.bounds)))
    default = key.default_text if key.is_required else f"default {key.default_text}"
    return "\n".join(
        (key.name, _fold(f"{told}; {default}", "    "), _fold(key.description, "    "))
    )


def _fold(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        shutil.get_terminal_size().columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
