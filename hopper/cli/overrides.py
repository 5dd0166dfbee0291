"""A parser that accepts overrides of a configuration anywhere among the words of a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopper.files.local_path import EXPECTED, is_address
from hopper.process.override_words import split_overrides


class OverridableParser(argparse.ArgumentParser):
    """Collects ``--section.key VALUE`` as ``overrides`` and parses the other words.

    A command refuses overrides unless it has the default ``takes_overrides``. Paths are paths on
    this machine.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.register("type", Path, _local_path)

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


def _local_path(text: str) -> Path:
    """Return the path that a word of the command line names."""
    if is_address(text):
        raise argparse.ArgumentTypeError(f"{EXPECTED}, given {text}")
    return Path(text)
