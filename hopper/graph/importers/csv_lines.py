"""Read CSV tables line by line, to tell which line is wrong and why."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hopper.errors import GraphError
from hopper.graph.importers.source_files import require_file


@dataclass(frozen=True)
class Line:
    """One data line of a table."""

    file: Path
    number_in_file: int
    values: dict[str, str]

    def refuse(self, column: str, expected: str) -> GraphError:
        """Make the error that says which value of the line is wrong."""
        return GraphError(
            f"{self.file}: line {self.number_in_file}: column {column}: expected {expected}, "
            f"given {self.values.get(column)!r}"
        )


def find_line(file: Path, row: int) -> Line:
    """Find the line of a row, counted from 0; it has no values if the table has fewer rows."""
    return next(islice(read_lines(file), row, None), None) or Line(file, row + 2, {})


def read_lines(file: Path) -> Iterator[Line]:
    """Iterate over the data lines of a table.

    Raises
    ------
    GraphError: the header is missing or repeats a column, a line has another number of values, or
        the file is not UTF-8.
    """
    header = read_header(file)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            next(reader)
            for values in reader:
                if not values:
                    continue
                if len(values) != len(header):
                    raise GraphError(
                        f"{file}: line {reader.line_num}: expected {len(header)} columns, "
                        f"given {len(values)}"
                    )
                yield Line(file, reader.line_num, dict(zip(header, values, strict=True)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GraphError(f"{file}: cannot be read as CSV: {error}") from error


def read_header(file: Path) -> list[str]:
    """Read the names of a table's columns.

    Raises
    ------
    GraphError: there is no header, or it repeats a column.
    """
    try:
        with require_file(file, "table").open(newline="", encoding="utf-8-sig") as stream:
            header = next(csv.reader(stream, strict=True), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GraphError(f"{file}: cannot be read as CSV: {error}") from error
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    if not header or repeated:
        raise GraphError(
            f"{file}: line 1: expected a header of distinct columns, given {repeated or 'nothing'}"
        )
    return header
