"""Reads the lines of a run's logs (:mod:`hopper.timing.run_log`), one file for each rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hopper.errors import RequestError


def log_files(folder: Path) -> list[Path]:
    """List the logs of all ranks, in order. Empty if the folder has none."""
    numbers = (path.stem.removeprefix("rank-") for path in folder.glob("rank-*.jsonl"))
    ranks = sorted(int(number) for number in numbers if number.isdecimal())
    if ranks != list(range(len(ranks))):
        raise RequestError(
            f"{folder}: expected a file of every rank from 0 on, found those of {ranks}"
        )
    return [folder / f"rank-{rank}.jsonl" for rank in ranks]


def log_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read lines with their numbers, without a last line that a crash left half written."""
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
