"""How commands declare their options, and read overrides of a configuration among their words."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hopper.files.addresses import EXPECTED, is_address
from hopper.process.override_words import split_overrides


class CommandParser(argparse.ArgumentParser):
    """The parser of a command. Paths are paths on this machine.

    It collects ``--section.key VALUE`` anywhere among the words as ``overrides``. A command refuses
    overrides unless it reads a configuration.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.register("type", Path, _local_path)

    def option(
        self,
        words: str,
        help: str | None = None,
        *,
        several: bool = False,
        group: Any = None,
        **settings: Any,
    ) -> None:
        """Add an option or an argument.

        Parameters
        ----------
        words: its name and what stands for its value in the help, as "--seed K" or "graph DIR". An
            option with neither a value nor further settings is true or false.
        several: whether it may be given several times, for a list of values.
        group: the group of options that it belongs to; None = the parser's own.
        settings: further ones of argparse's ``add_argument``.
        """
        name, _, metavar = words.partition(" ")
        if metavar:
            settings["metavar"] = metavar
        elif name.startswith("-") and not settings and not several:
            settings["action"] = "store_true"
        if several:
            settings |= {"action": "append", "default": []}
        (self if group is None else group).add_argument(name, help=help, **settings)

    def metapath_option(self, prefix: str = "") -> None:
        """Add ``--metapath``, a list of the relations of each path. Its help begins with
        ``prefix``."""
        self.option(
            "--metapath R,R,...",
            f"{prefix}follow only these relations, from the target outwards; may be repeated",
            several=True,
            type=lambda path: [word.strip() for word in path.split(",")],
        )

    def run_on_config(self, run: Callable[[argparse.Namespace], int]) -> None:
        """Let the command run on a configuration, whose keys its words may override."""
        self.option("config CONFIG.toml")
        self.set_defaults(run=run, takes_overrides=True)

    def parse_known_args(  # type: ignore[override]  # argparse's overloads of the same call
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse words, and collect those of overrides as the option ``overrides``."""
        words, overrides = split_overrides(sys.argv[1:] if args is None else args)
        options, unknown = super().parse_known_args(words, namespace)
        if overrides and not getattr(options, "takes_overrides", False):
            self.error(f"{overrides[0]}: this command reads no configuration")
        options.overrides = overrides
        return options, unknown


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Let what this process and those that it starts print meanwhile go to stderr, so that stdout
    has JSON alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def print_json(value: Any) -> None:
    """Print what ``--json`` asks for."""
    print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def whole(text: str) -> int:
    """Read a whole number below 2**31. The caller checks whether it makes sense.

    Raises
    ------
    argparse.ArgumentTypeError: the text is no such number.
    """
    # The configuration takes a moment to import. `--help` does without it.
    from hopper.config.bounds import COUNTS

    return _read(text, -COUNTS + 1, COUNTS, "a whole number below 2**31")


def seed(text: str) -> int:
    """Read a seed: a whole number from 0, below 2**63. Other numbers would equal one of these.

    Raises
    ------
    argparse.ArgumentTypeError: the text is no such number.
    """
    from hopper.config.bounds import SEEDS

    return _read(text, 0, SEEDS, "a whole number from 0, below 2**63")


def _read(text: str, low: int, high: int, expected: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = high
    if not low <= value < high:
        raise argparse.ArgumentTypeError(f"expected {expected}, given {text!r:.40}")
    return value


def _local_path(text: str) -> Path:
    if is_address(text):
        raise argparse.ArgumentTypeError(f"{EXPECTED}, given {text}")
    return Path(text)
