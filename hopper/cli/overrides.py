"""Overrides of a configuration among a command's words, wherever they stand."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

_OVERRIDE: Final = re.compile(r"--(?:\w+\.\w+|replay)(=.*)?", re.DOTALL)


class OverridableParser(argparse.ArgumentParser):
    """Leaves ``--section.key VALUE`` out of its arguments and keeps it as ``overrides``; a command
    that can do nothing with it says so, unless it has the default ``takes_overrides``."""

    def parse_known_args(  # type: ignore[override]  # argparse's overloads of the same call
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        own: list[str] = []
        overrides: list[str] = []
        words = iter(sys.argv[1:] if args is None else args)
        for word in words:
            match = _OVERRIDE.fullmatch(word)
            if match is None:
                own.append(word)
                continue
            overrides.append(word)
            if not match[1]:
                overrides += [value for value in [next(words, None)] if value is not None]
        found, unknown = super().parse_known_args(own, namespace)
        if overrides and not getattr(found, "takes_overrides", False):
            self.error(f"{overrides[0]}: this command reads no configuration")
        found.overrides = overrides
        return found, unknown
