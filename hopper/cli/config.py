"""``hopper config --explain [KEY] | --schema``: explain the keys of a configuration."""

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
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser(
        "config",
        help=text,
        description="Explain the keys of a configuration, or print their JSON schema. The command "
        "reads no file and starts nothing.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="KEY",
        help="print type, bounds, default and meaning of a key (train.epochs), of the keys of a "
        "section (train), or of all keys",
    )
    what.add_argument(
        "--schema",
        action="store_true",
        help="print a JSON schema, with which editors complete and check configurations",
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


def find_keys(keys: Sequence[Key], name: str) -> list[Key]:
    """Find keys by name.

    ``name`` is a key with its section, a section, or a key in any section. "" = all keys.

    Raises
    ------
    RequestError: no key has this name.
    """
    name = name.strip("[]").removeprefix("--")
    matches = [key for key in keys if name in ("", key.name, *key.name.split("."))]
    if not matches:
        words = [word for key in keys for word in (key.name, *key.name.split("."))]
        close = difflib.get_close_matches(name, list(dict.fromkeys(words)), n=3)
        hint = f"; close to it: {', '.join(close)}" if close else ""
        raise RequestError(f"--explain: expected a key or a section, given {name!r:.100}{hint}")
    return matches


def explain(key: Key) -> str:
    """Write a key's name, and below it its type, bounds, default and meaning."""
    kind = ", ".join(filter(None, (key.type, key.bounds)))
    default = key.default_text if key.is_required else f"default {key.default_text}"
    return "\n".join(
        (key.name, _fold(f"{kind}; {default}", "    "), _fold(key.description, "    "))
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
