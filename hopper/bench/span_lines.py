"""The lines of a run's logs (hopper.run_log), a file a rank, as they are on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hopper.errors import RequestError


def log_files(folder: Path) -> list[Path]:
    """The logs of all ranks, in order; none where the folder has none.

    Raises
    ------
    RequestError: a rank's is missing.
    """
    found = {}
    for path in folder.glob("rank-*.jsonl"):
        number = path.stem.removeprefix("rank-")
        if number.isdecimal():
            found[int(number)] = path
    if sorted(found) != list(range(len(found))):
        raise RequestError(
            f"{folder}: expected a file of every rank from 0 on, found those of {sorted(found)}"
        )
    return [found[rank] for rank in sorted(found)]


def log_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines with their number; a last one that a crash left half written is dropped.

    Raises
    ------
    RequestError: a line is no object.
    """
    broken = ""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            if broken:
                raise RequestError(broken)
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                broken = f"{path}: line {number}: expected JSON: {error}"
                continue
            if not isinstance(line, dict):
                raise RequestError(f"{path}: line {number}: expected an object, given {text[:60]}")
            yield number, line
