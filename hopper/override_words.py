"""Overrides of a configuration among a command's words, wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_OVERRIDE: Final = re.compile(r"--(?:\w+\.\w+|replay)(=.*)?", re.DOTALL)


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's own words, and the words of its overrides.

    An override is ``--section.key VALUE`` or ``--section.key=VALUE``.
    """
    own: list[str] = []
    overrides: list[str] = []
    rest = iter(words)
    for word in rest:
        match = _OVERRIDE.fullmatch(word)
        if match is None:
            own.append(word)
            continue
        overrides.append(word)
        if not match[1]:
            overrides += [value for value in [next(rest, None)] if value is not None]
    return own, overrides
