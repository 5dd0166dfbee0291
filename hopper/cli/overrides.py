"""A parser that takes overrides of a configuration, wherever they stand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from hopper.override_words import split_overrides


class OverridableParser(argparse.ArgumentParser):
    """Leaves ``--section.key VALUE`` out of its arguments and keeps it as ``overrides``; a command
    that can do nothing with it says so, unless it has the default ``takes_overrides``."""

    def parse_known_args(  # type: ignore[override]  # argparse's overloads of the same call
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        own, overrides = split_overrides(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(own, namespace)
        if overrides and not getattr(found, "takes_overrides", False):
            self.error(f"{overrides[0]}: this command reads no configuration")
        found.overrides = overrides
        return found, unknown
