"""Node and edge tables in CSV: read row by row, errors naming file, line and column."""

from __future__ import annotations

import csv
import math
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.feature_columns import (
    MOST_CATEGORIES,
    FeatureColumn,
    number_texts,
    width_of,
)
from hopper.graph.importers.label_columns import (
    Read,
    all_columns,
    find_label_columns,
    join_read,
    kind_of,
)
from hopper.graph.importers.source_files import require_file
from hopper.graph.importers.tables import CHUNK_BYTES
from hopper.graph.schema import Labels
from hopper.graph.times import parse_time

_MOST_CLASSES = 2**31


@dataclass(frozen=True)
class CsvFeatures:
    """The feature columns of a table, read again, in chunks, when they are asked for."""

    file: Path
    columns: list[FeatureColumn]
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, width_of(self.columns)

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [name for column in self.columns for name in column.names]

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32"""
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Chunks of at most 64 MiB; NaN where nothing stands."""
        width = self.shape[1]
        step = max(1, CHUNK_BYTES // (4 * width))
        part = np.empty((min(step, self.rows), width), np.float32)
        start = filled = 0
        for line in read_lines(self.file):
            row: list[float] = []
            for column in self.columns:
                if not column.categories:
                    row.append(line.number(column.name) if line.values[column.name] else math.nan)
                    continue
                place = column.places.get(line.values[column.name])
                row += [float(place == other) for other in range(column.width)]
            part[filled] = row
            filled += 1
            if filled == step:
                yield start, part[:filled]
                start, filled = start + filled, 0
        if filled:
            yield start, part[:filled]


@dataclass
class NodeTable:
    """What a node table says, apart from its features."""

    rows: dict[str, int]
    """id in the table -> row"""
    labels: tuple[Labels, NDArray[Any]] | None
    label_names: list[str]
    """of classes that the table does not number"""
    splits: dict[str, array[int]] | None
    """rows by split; None where the table has no such column"""
    features: CsvFeatures | None
    times: NDArray[np.int64] | None
    task_names: dict[str, list[str]]
    """of classes, by task where labels are of several"""

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.rows)

    @property
    def names(self) -> list[str] | None:
        """The ids by row; None where they are 0, 1, ... in order, so that nothing is lost by
        forgetting them."""
        is_numbered = all(name == str(row) for name, row in self.rows.items())
        return None if is_numbered else list(self.rows)


@dataclass
class EdgeTable:
    """What an edge table says, apart from its features."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    weights: NDArray[np.float32] | None
    labels: tuple[Labels, NDArray[Any]] | None
    label_names: list[str]
    splits: dict[str, array[int]] | None
    features: CsvFeatures | None
    times: NDArray[np.int64] | None
    task_names: dict[str, list[str]]


@dataclass(frozen=True)
class Line:
    """One data line of a table."""

    file: Path
    number_in_file: int
    values: dict[str, str]

    def refuse(self, column: str, expected: str) -> GraphError:
        """The error that a value is not what was expected."""
        return GraphError(
            f"{self.file}: line {self.number_in_file}: column {column}: expected {expected}, "
            f"given {self.values.get(column)!r}"
        )

    def number(self, column: str) -> float:
        """A float, finite."""
        try:
            value = float(self.values[column])
        except ValueError:
            raise self.refuse(column, "a number") from None
        if not np.isfinite(value):
            raise self.refuse(column, "a finite number")
        return value

    def time(self, column: str) -> int:
        """See :func:`parse_time`."""
        try:
            return parse_time(self.values[column])
        except ValueError as error:
            raise self.refuse(column, str(error)) from None

    def integer(self, column: str, low: int, high: int, expected: str) -> int:
        """An integer in [low, high)."""
        try:
            value = int(self.values[column])
        except ValueError:
            raise self.refuse(column, expected) from None
        if not low <= value < high:
            raise self.refuse(column, expected)
        return value


def read_lines(file: Path) -> Iterator[Line]:
    """The data lines of a table.

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
    """The names of a table's columns.

    Raises
    ------
    GraphError: there is no header, or it repeats a column.
    """
    try:
        with require_file(file, "table").open(newline="", encoding="utf-8-sig") as stream:
            header = next(csv.reader(stream, strict=True), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GraphError(f"{file}: cannot be read as CSV: {error}") from error
    repeated = sorted({name for name in header if header.count(name) > 1})
    if not header or repeated:
        raise GraphError(
            f"{file}: line 1: expected a header of distinct columns, given {repeated or 'nothing'}"
        )
    return header


def read_node_table(file: Path) -> NodeTable:
    """Read a node table.

    Raises
    ------
    GraphError: naming file, line and column.
    """
    header = read_header(file)
    _require(file, header, "id")
    label_columns = find_label_columns(header, f"{file}: line 1")
    rows: dict[str, int] = {}
    labels = [_LabelColumns(own) for own in label_columns.values()]
    splits: dict[str, array[int]] | None = {} if "split" in header else None
    times = array("q") if "time" in header else None
    taken = ("id", "time", "split", *all_columns(label_columns))
    features = _Columns(name for name in header if name not in taken)
    for line in read_lines(file):
        name = line.values["id"]
        if not name or name in rows:
            raise line.refuse("id", "a distinct id")
        _add_split(splits, line, len(rows))
        rows[name] = len(rows)
        if times is not None:
            times.append(line.time("time"))
        for own in labels:
            own.read(line)
        features.read(line)
    found = features.finish(file, len(rows))
    read, names = _finish(label_columns, labels, file)
    return NodeTable(rows, *read, splits, found, _times(times), names)


def read_edge_table(file: Path, sources: NodeTable, targets: NodeTable) -> EdgeTable:
    """Read an edge table.

    Parameters
    ----------
    sources, targets: of the source and the destination type.

    Raises
    ------
    GraphError: naming file, line and column.
    """
    header = read_header(file)
    _require(file, header, "src")
    _require(file, header, "dst")
    src, dst = array("q"), array("q")
    label_columns = find_label_columns(header, f"{file}: line 1")
    labels = [_LabelColumns(own) for own in label_columns.values()]
    weights, has_weights = array("f"), "weight" in header
    times = array("q") if "time" in header else None
    taken = ("src", "dst", "weight", "time", "split", *all_columns(label_columns))
    features = _Columns(name for name in header if name not in taken)
    splits: dict[str, array[int]] | None = {} if "split" in header else None
    for line in read_lines(file):
        for column, ids, known in (("src", src, sources.rows), ("dst", dst, targets.rows)):
            row = known.get(line.values[column])
            if row is None:
                raise line.refuse(column, "an id of the node table")
            ids.append(row)
        _add_split(splits, line, len(src) - 1)
        for own in labels:
            own.read(line)
        if has_weights:
            weight = line.number("weight")
            if weight <= 0:
                raise line.refuse("weight", "a positive number")
            weights.append(weight)
        if times is not None:
            times.append(line.time("time"))
        features.read(line)
    read, names = _finish(label_columns, labels, file)
    return EdgeTable(
        np.array(src, np.int64),
        np.array(dst, np.int64),
        np.array(weights, np.float32) if has_weights else None,
        *read,
        splits,
        features.finish(file, len(src)),
        _times(times),
        names,
    )


def _finish(
    columns: dict[str, list[str]], labels: list[_LabelColumns], file: Path
) -> tuple[Read, dict[str, list[str]]]:
    found = {task: own.finish() for task, own in zip(columns, labels, strict=True)}
    return join_read(found, f"{file}: labels")


def _times(found: array[int] | None) -> NDArray[np.int64] | None:
    return None if found is None else np.array(found, np.int64)


class _Columns:
    """Finds out what columns of features hold: what stands in one first says whether numbers or
    texts do."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._undecided, self._texts = list(self._names), dict[str, set[str]]()

    def read(self, line: Line) -> None:
        """Look at a line."""
        for name in [name for name in self._undecided if line.values[name]]:
            self._undecided.remove(name)
            if not _is_number(line.values[name]):
                self._texts[name] = set()
        for name, found in self._texts.items():
            if line.values[name]:
                found.add(line.values[name])
                if len(found) > MOST_CATEGORIES:
                    raise line.refuse(
                        name, f"a number, or at most {MOST_CATEGORIES:,} different texts"
                    )

    def finish(self, file: Path, rows: int) -> CsvFeatures | None:
        """The columns' features."""
        columns = [
            FeatureColumn(name, tuple(sorted(self._texts.get(name, ())))) for name in self._names
        ]
        return CsvFeatures(file, columns, rows) if columns else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass
class _LabelColumns:
    """Collects the labels of a table of which the label columns are known."""

    columns: list[str]
    found: array[float] = field(default_factory=lambda: array("d"))
    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int | None] = field(default_factory=dict)
    """by text that stands for a class, its number; None of a name"""
    outside: Line | None = None
    """the first line with a number that no class has"""

    def read(self, line: Line) -> None:
        kind = kind_of(self.columns[0])
        for column in self.columns:
            if kind == "value":
                empty = not line.values[column]
                self.found.append(float("nan") if empty else line.number(column))
            elif kind == "label":
                # Few are different, so each is kept once.
                text = sys.intern(line.values[column])
                self.texts.append(text)
                if text and text not in self.numbers:
                    number = self.numbers[text] = _integer(text)
                    if number is not None and not 0 <= number < _MOST_CLASSES:
                        self.outside = self.outside or line
            else:
                self.found.append(line.integer(column, 0, 2, "0 or 1"))

    def finish(self) -> Read:
        """The labels, and what classes are called that the table does not number."""
        if kind_of(self.columns[0]) == "label":
            return self._classes()
        return self._numbers(), []

    def _classes(self) -> tuple[tuple[Labels, NDArray[Any]], list[str]]:
        if None in self.numbers.values():
            classes, names = number_texts(self.texts)
            return (Labels("class", max(1, len(names))), classes), names
        if self.outside is not None:
            expected = "a class (an integer of at least 0) or nothing"
            raise self.outside.refuse(self.columns[0], expected)
        known = {"": -1, **self.numbers}
        classes = np.array([known[each] for each in self.texts], np.int64)
        return (Labels("class", max(1, int(classes.max(initial=-1)) + 1)), classes), []

    def _numbers(self) -> tuple[Labels, NDArray[Any]]:
        values = np.array(self.found, np.float64)
        if kind_of(self.columns[0]) == "value":
            return Labels("float", 1), values.astype(np.float32)
        table = values.reshape(-1, len(self.columns))
        return Labels("multi_hot", len(self.columns)), table.astype(np.uint8)


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _require(file: Path, header: list[str], column: str) -> None:
    if column not in header:
        raise GraphError(f"{file}: line 1: column {column}: expected, but missing in {header}")


def _add_split(splits: dict[str, array[int]] | None, line: Line, row: int) -> None:
    if splits is not None and (name := line.values["split"]):
        splits.setdefault(name, array("q")).append(row)
