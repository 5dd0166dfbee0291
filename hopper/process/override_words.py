"""Separates overrides of a configuration from the other words of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_OVERRIDE: Final = re.compile(r"--(?:\w+\.\w+|replay)(=.*)?", re.DOTALL)


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words of a command into its own words and those of overrides.

    An override is ``--section.key VALUE`` or ``--section.key=VALUE``. It may stand anywhere.
    """
    command_words: list[str] = []
    overrides: list[str] = []
    remaining = iter(words)
    for word in remaining:
        match = _OVERRIDE.fullmatch(word)
        if match is None:
            command_words.append(word)
            continue
        overrides.append(word)
        if not match[1]:
            overrides += [value for value in [next(remaining, None)] if value is not None]
    return command_words, overrides
