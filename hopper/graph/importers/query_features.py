"""Read the features in a query's result: numbers, lists of numbers, and texts, which become
categories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.columns import FeatureColumn
from hopper.graph.importers.query import INTEGERS, NATIVE, NUMBERS, QueryReader
from hopper.graph.importers.tables import CHUNK_BYTES, Features

MOST_CATEGORIES: Final = 1000
"""Largest number of categories of a column."""


class _Part(NamedTuple):
    """A column of the source, and how it is read in SQL."""

    column: FeatureColumn
    sql: str
    expected: str = ""
    """what should stand where it is NULL, which is refused; "" = NULL is a missing number"""


def read_features(
    reader: QueryReader, names: Sequence[str]
) -> tuple[tuple[FeatureColumn, ...], Features]:
    """Return the columns of features, and the features, which are read in chunks of 64 MiB.

    Missing numbers are NaN. Columns that cannot be read are problems of the source, and 0.
    """
    known: dict[str, FeatureColumn | None] = dict.fromkeys(names)
    if reader.like is not None:
        like = reader.like.columns(reader.query.owner, names, reader.query.header)
        known = {column.name: column for column in like}
    parts: list[_Part] = [
        reader.attempt(name, _find_part, reader, name, column) or _Part(FeatureColumn(name), "0")
        for name, column in known.items()
    ]
    columns, count = tuple(part.column for part in parts), reader.count
    width = sum(column.width for column in columns)

    def chunks() -> Iterator[tuple[int, NDArray[Any]]]:
        step = max(1, CHUNK_BYTES // (4 * width))
        chunk = np.empty((0, width), np.float32)
        for start, batch in reader.scan(*(part.sql for part in parts), rows=step):
            first, stop = start, start + batch.num_rows
            while first < stop:
                place = first % step
                if place == 0:
                    chunk = np.empty((min(step, count - first), width), np.float32)
                piece = batch.slice(first - start, len(chunk) - place)
                _fill(reader, parts, piece, first, chunk[place : place + piece.num_rows])
                first += piece.num_rows
                if place + piece.num_rows == len(chunk):
                    yield first - len(chunk), chunk

    return columns, Features((count, width), np.dtype(np.float32), chunks)


def _fill(
    reader: QueryReader, parts: Sequence[_Part], batch: Any, first: int, rows: NDArray[np.float32]
) -> None:
    """Fill rows of features, [n, columns], from a batch whose first row is ``first``."""
    start = 0
    for part, values in zip(parts, batch.columns, strict=True):
        stop = start + part.column.width
        if part.column.categories:
            rows[:, start:stop] = values.to_numpy()[:, None] == np.arange(part.column.width)
        else:
            numbers = reader.attempt(part.column.name, _read_numbers, reader, part, values, first)
            with np.errstate(over="ignore"):
                rows[:, start:stop] = 0 if numbers is None else numbers
        start = stop


def _read_numbers(reader: QueryReader, part: _Part, values: Any, first: int) -> NDArray[Any]:
    """Return [n, numbers] of a column of numbers or of lists of numbers."""
    if part.expected:
        reader.refuse_nulls(values, first, part.column.name, part.expected)
    values = values.flatten() if reader.kind(part.column.name) == "list" else values
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, part.column.numbers)


def _find_part(reader: QueryReader, name: str, known: FeatureColumn | None) -> _Part:
    """Find out what a column of features holds, and how it is read in SQL."""
    kind, column = reader.kind(name), reader.column(name)
    is_list = kind == "list" and reader.types[name].startswith((*INTEGERS, *NUMBERS))
    if kind not in ("integer", "number", "text") and not is_list:
        raise reader.refuse_type(name, "numbers, lists of them, or texts")
    has_texts = known is not None and bool(known.categories)
    is_text = has_texts or (kind == "text" and _has_categories(reader, name))
    if is_text and not is_list and (known is None or has_texts):
        categories = known.categories if known is not None else None
        texts, code = reader.encode(name, categories, f"column {name!r}")
        return _Part(known or FeatureColumn(name, tuple(texts)), code)
    width = reader.first(f"len({column})", "WHERE rowid = 0") if is_list and reader.count else 1
    if not width:
        raise reader.refuse(0, name, "numbers")
    if known is not None and (is_text or known.numbers != width):
        raise GraphError(
            f"{reader.query.where}: column {name}: expected {known.numbers} numbers a row, as in "
            f"{reader.like and reader.like.path}, given {'texts' if is_text else width}"
        )
    read = known or FeatureColumn(name, numbers=width)
    if not is_list:
        return _Part(read, *reader.number_or_nan(name))
    element = reader.types[name].split("[")[0]
    element = element if element in NATIVE else "DOUBLE"
    fits = f"len({column}) = {width} AND list_count({column}) = {width}"
    sql = f"CASE WHEN {fits} THEN {column}::{element}[] END"
    return _Part(read, sql, f"{width} numbers, as in the first row")


def _has_categories(reader: QueryReader, name: str) -> bool:
    """Return whether texts are categories: typed ones, and others that begin with no number."""
    text = reader.text(name)
    first = f"arg_min({text}, rowid) FILTER ({text} IS NOT NULL)"
    is_number = reader.first(f"TRY_CAST({first} AS DOUBLE) IS NOT NULL OR {first} IS NULL")
    if is_number and not reader.query.typed:
        return False
    rest = f"WHERE {text} IS NOT NULL GROUP BY {text} ORDER BY 1 LIMIT 1 OFFSET {MOST_CATEGORIES}"
    row = reader.first("min(rowid)", rest)
    if row is not None:
        expected = f"a number, or at most {MOST_CATEGORIES:,} different texts"
        raise reader.refuse(row, name, expected)
    return True
