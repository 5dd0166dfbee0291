"""Writes a configuration as TOML. The standard library can only read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopper.whole_files import write_text


def write_toml(path: Path, values: Mapping[str, Mapping[str, Any]], comment: Sequence[str]) -> None:
    """Write sections of strings, numbers, truth values and lists of them.

    Parameters
    ----------
    values: by section, then by key.
    comment: lines to put above.

    Raises
    ------
    TypeError: a value of another type.
    """
    lines = [f"# {line}".rstrip() for line in comment]
    for section, keys in values.items():
        lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        lines += [f"{key} = {_format_value(value)}" for key, value in keys.items()]
    write_text(path, "\n".join(lines) + "\n")


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # A basic string of TOML escapes as JSON does.
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_format_value(entry) for entry in value)}]"
    raise TypeError(f"no TOML for {value!r}")
