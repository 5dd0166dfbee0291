"""``hopper config explain | schema | init``: what keys mean, and a configuration to begin with."""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper.cli.options import CommandParser, print_json
from hopper.errors import RequestError

if TYPE_CHECKING:
    from hopper.config.reference import Key


def add_options(parser: CommandParser) -> None:
    """Add the kinds of help."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    explain = kinds.add_parser(
        "explain", help="print type, bounds, default and meaning of a key, a section or all keys"
    )
    explain.add_argument("key", nargs="?", default="", help="train.epochs, or train")
    explain.set_defaults(run=_run_explain)
    schema = kinds.add_parser(
        "schema", help="print a JSON schema, with which editors complete and check configurations"
    )
    schema.set_defaults(run=_run_schema)
    init = kinds.add_parser(
        "init", help="print a configuration to begin with, for a partitioned directory"
    )
    init.option("parts PARTS", "what hopper partition has written", type=Path)
    init.set_defaults(run=_run_init)


def _run_schema(_options: argparse.Namespace) -> int:
    from hopper.config.reference import make_schema

    print_json(make_schema())
    return 0


def _run_explain(options: argparse.Namespace) -> int:
    from hopper.config.reference import describe_section, list_keys, sections

    section = ""
    for key in _find_keys(list_keys(), options.key):
        if section != (section := key.name.partition(".")[0]):
            print(_fold(f"[{section}] {describe_section(sections()[section])}", ""), end="\n\n")
        kind = ", ".join(filter(None, (key.type, key.bounds)))
        default = key.default_text if key.is_required else f"default {key.default_text}"
        lines = (key.name, _fold(f"{kind}; {default}", "    "), _fold(key.description, "    "))
        print(*lines, sep="\n", end="\n\n")
    return 0


def _run_init(options: argparse.Namespace) -> int:
    from hopper.config import make_config
    from hopper.features import open_graph

    values: dict[str, Any] = {
        "data": {"partitioned": str(options.parts.absolute())},
        "model": {"name": "sage", "layers": 2, "hidden": 64},
        "sampler": {"fanouts": [10, 10]},
        "train": {"engine": "auto", "batch_size": 1024, "epochs": 10, "run_dir": "run"},
    }
    schema = open_graph(make_config(values)).schema
    if len(schema.relations) > 1:
        values["model"]["name"] = "rgcn"
    for section, keys in values.items():
        print(f"[{section}]")
        for key, value in keys.items():
            print(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return 0


def _find_keys(keys: Sequence[Key], name: str) -> list[Key]:
    """Find keys by a key with its section, a section, or a key in any section; "" = all keys."""
    name = name.strip("[]").removeprefix("--")
    matches = [key for key in keys if name in ("", key.name, *key.name.split("."))]
    if not matches:
        words = [word for key in keys for word in (key.name, *key.name.split("."))]
        close = difflib.get_close_matches(name, list(dict.fromkeys(words)), n=3)
        hint = f"; close to it: {', '.join(close)}" if close else ""
        raise RequestError(f"KEY: expected a key or a section, given {name!r:.100}{hint}")
    return matches


def _fold(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        shutil.get_terminal_size().columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
