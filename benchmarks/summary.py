"""summary.csv, the one form of results: a line for a side of a cell and what was measured of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from hopper.files.whole_files import write_text

SUMMARY_FILE: Final = "summary.csv"


class Row(NamedTuple):
    """One line; None = an empty field.

    Attributes
    ----------
    measure: names its unit where it has one, such as "epoch seconds".
    median: over rounds or seeds.
    ratio: the baseline's value over the side's, paired by round (times faster, or times fewer).
    low, high: the ratio's 95 % interval.
    rounds: how many rounds or seeds; None for counts that no clock or seed changes.
    bytes: sent by all ranks in an epoch.
    date: ISO. commit: 12 digits, and a "+" where files differed from it.
    """

    experiment: str
    cell: str
    side: str
    measure: str
    median: float | None
    baseline: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int | None = None
    bytes: int | None = None
    date: str = ""
    commit: str = ""


_FLOATS = ("median", "ratio", "low", "high")
_INTEGERS = ("rounds", "bytes")


def read(path: Path) -> list[Row]:
    """Return the lines of a file; none where there is no file.

    Raises
    ------
    ValueError: a line or the header has another form; names the file and line.
    """
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if header != list(Row._fields):
            raise ValueError(
                f"{path}: expected the columns {','.join(Row._fields)}, found {header}"
            )
        return [_parse(path, number, fields) for number, fields in enumerate(reader, 2)]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows into a file, sorted, in the place of its lines of the same experiment and cell."""
    new = list(rows)
    replaced = {(row.experiment, row.cell) for row in new}
    kept = [row for row in read(path) if (row.experiment, row.cell) not in replaced]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(sorted([_fields(row) for row in [*kept, *new]]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def _parse(path: Path, number: int, fields: list[str]) -> Row:
    try:
        named = dict(zip(Row._fields, fields, strict=True))
        numbers = {name: float(named[name]) if named[name] else None for name in _FLOATS}
        counts = {name: int(named[name]) if named[name] else None for name in _INTEGERS}
    except ValueError as error:
        raise ValueError(f"{path}: line {number}: {error}") from error
    return Row(**{**named, **numbers, **counts})  # type: ignore[arg-type]  # by name of the field


def _fields(row: Row) -> list[str]:
    return ["" if value is None else _text(value) for value in row]


def _text(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
