"""summary.csv, the one format of results: a line for a side of a cell and what was measured of it.

A ratio is the baseline's value over the side's, paired by round (times faster, or times fewer),
with its 95 % interval. Values and ratios are empty where there are none.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hopper.whole_files import write_text

SUMMARY_FILE = "summary.csv"


class Row(NamedTuple):
    """A line: ``rounds`` are paired rounds or seeds, ``bytes`` those of all ranks in an epoch."""

    experiment: str
    cell: str
    side: str
    measure: str
    median: float
    baseline: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int | None = None
    bytes: int | None = None
    date: str = ""
    commit: str = ""


def read(path: Path) -> list[Row]:
    """Return the lines of a file."""
    with path.open(newline="") as file:
        return [_parse(line) for line in csv.DictReader(file)]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Replace the lines of the same experiments and cells, and sort all lines."""
    new = list(rows)
    replaced = {(row.experiment, row.cell) for row in new}
    old = read(path) if path.exists() else []
    kept = [row for row in old if (row.experiment, row.cell) not in replaced]
    lines = sorted(kept + new, key=lambda row: (*row[:4], row.baseline))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows([_format(value) for value in row] for row in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def _parse(line: dict[str, str]) -> Row:
    numbers = {key: float(line[key]) if line[key] else None for key in ("ratio", "low", "high")}
    counts = {key: int(line[key]) if line[key] else None for key in ("rounds", "bytes")}
    return Row(**line | {"median": float(line["median"])} | numbers | counts)  # type: ignore[arg-type]


def _format(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
