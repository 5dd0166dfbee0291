"""Read columns of a query's result; errors name file, row or line, and column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import release_pages
from hopper.graph.columns import FeatureColumn, width_of
from hopper.graph.importers.database import Database
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.queries import Query
from hopper.graph.importers.tables import CHUNK_BYTES, Features

INTEGERS: Final = (
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
)
NATIVE: Final = (*INTEGERS, "FLOAT", "DOUBLE")
"""Types of DuckDB that NumPy has."""
NUMBERS: Final = ("FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN", "HUGEINT", "UHUGEINT")
_KINDS: Final = {
    "integer": INTEGERS,
    "number": NUMBERS,
    "text": ("VARCHAR", "ENUM"),
    "time": ("DATE", "TIMESTAMP"),
}
"""What columns hold, by the beginnings of DuckDB's types."""


class QueryReader:
    """Reads the columns of a query's result; what is wrong with one is a problem of the source."""

    def __init__(self, query: Query, database: Database, problems: Problems) -> None:
        self.query, self.database, self.problems = query, database, problems
        self.table = database.new_name("t")
        kind = "VIEW" if query.numbered else "TABLE"
        with query.explain_errors(database):
            database.fetch(f"CREATE {kind} {self.table} AS {query.sql}")
            self.count = int(self.first("count(*)"))
        described = database.fetch(f"DESCRIBE {self.table}")
        self.types = {name: str(row[1]) for name, row in zip(query.names, described, strict=False)}

    def attempt(self, field: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Take a step of reading a column, and keep what is wrong with it; None if anything is."""
        return self.problems.attempt(self.query.file, field, step, *arguments)

    def column(self, name: str) -> str:
        """Return a column in SQL."""
        return f"c{self.query.names.index(name)}"

    def text(self, name: str) -> str:
        """Return a column of texts in SQL; NULL where it is missing or empty."""
        return f"nullif({self.column(name)}::VARCHAR, '')"

    def kind(self, name: str) -> str:
        """Return what a column holds: "text", "integer", "number", "time", "list" or "other"."""
        sql_type = self.types[name]
        if sql_type.endswith("]"):
            return "list"
        return next((kind for kind, ts in _KINDS.items() if sql_type.startswith(ts)), "other")

    def number(self, name: str) -> str:
        """Return a column of numbers in SQL; NULL where there is none."""
        if self.kind(name) not in ("integer", "number", "text"):
            raise self.refuse_type(name, "numbers")
        column = self.column(name)
        return column if self.types[name] in NATIVE else f"TRY_CAST({column} AS DOUBLE)"

    def number_or_nan(self, name: str) -> str:
        """Return a column of numbers in SQL; NaN or NULL where one is missing.

        A text that is no finite number is NULL.
        """
        number = self.number(name)
        if self.kind(name) != "text":
            return number
        finite = f"{number} > '-inf'::DOUBLE AND {number} < 'inf'::DOUBLE"
        missing = f"{self.text(name)} IS NULL"
        return f"CASE WHEN {missing} THEN 'nan'::DOUBLE WHEN {finite} THEN {number} END"

    def expect_number(self, name: str) -> str:
        """Return what should stand where :meth:`number_or_nan` is NULL; "" if that is missing."""
        return "a finite number" if self.kind(name) == "text" else ""

    def select(self, columns: str, rest: str = "") -> str:
        """Return the query for columns in SQL; ``rest`` follows the name of the table."""
        # Names are made here, and texts are quoted.
        return f"SELECT {columns} FROM {self.table} {rest}"  # noqa: S608

    def first(self, columns: str, rest: str = "") -> Any:
        """Return the first value of the first row of a query; None if it has no rows."""
        with self.query.explain_errors(self.database):
            rows = self.database.fetch(self.select(columns, rest))
        return rows[0][0] if rows else None

    def scan(
        self, *columns: str, rest: str = "", rows: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over columns in SQL, in pairs of a first row and a pyarrow batch of about
        ``rows``."""
        with self.query.explain_errors(self.database):
            yield from self.database.scan(self.select(", ".join(columns), rest), rows=rows)

    def refuse_type(self, name: str, expected: str) -> GraphError:
        """Make the error that a column has an unsuitable type."""
        return GraphError(
            f"{self.query.file}: column {name}: expected {expected}, given {self.types[name]}"
        )

    def refuse(self, row: int, name: str, expected: str) -> GraphError:
        """Make the error that a value is wrong."""
        value = self.first(self.column(name), f"WHERE rowid = {row}")
        given = "nothing" if value is None else repr(value)
        return GraphError(
            f"{self.query.place(row)}: column {name}: expected {expected}, given {given}"
        )

    def refuse_nulls(self, values: Any, first: int, name: str, expected: str) -> None:
        """Refuse the first NULL of a pyarrow array whose first row is ``first``."""
        if values.null_count:
            nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            raise self.refuse(first + int(nulls[0]), name, expected)

    def read(
        self, name: str, sql: str, dtype: DTypeLike, expected: str = "", out: Any = None
    ) -> NDArray[Any]:
        """Read a column in SQL into an array, which is new unless one is given.

        Parameters
        ----------
        expected: what should stand where it is NULL, which is refused; "" = NULL is NaN.
        """
        array = self.database.array(dtype, (self.count,)) if out is None else out
        for first, batch in self.scan(sql):
            if expected:
                self.refuse_nulls(batch.column(0), first, name, expected)
            with np.errstate(over="ignore"):
                values = batch.column(0).to_numpy(zero_copy_only=False)
                array[first : first + len(values)] = values
            release_pages(array)
        return array


def read_features(
    reader: QueryReader, columns: Sequence[FeatureColumn], sql: Sequence[str]
) -> Features:
    """Return the features of columns, which are read in chunks of 64 MiB; missing numbers are NaN.

    Columns that cannot be read are problems of the table, and 0.

    Parameters
    ----------
    sql: how each column is read.
    """
    count, width = reader.count, width_of(columns)

    def chunks() -> Iterator[tuple[int, NDArray[Any]]]:
        step = max(1, CHUNK_BYTES // (4 * width))
        start = stop = 0
        chunk = np.empty((min(step, count), width), np.float32)
        for first, batch in reader.scan(*sql, rows=step):
            done = 0
            while done < batch.num_rows:
                part = batch.slice(done, start + len(chunk) - stop)
                rows = chunk[stop - start :][: part.num_rows]
                _fill(reader, columns, part, first + done, rows)
                done, stop = done + part.num_rows, stop + part.num_rows
                if stop - start == len(chunk):
                    yield start, chunk
                    start = stop
                    chunk = np.empty((min(step, count - start), width), np.float32)

    return Features((count, width), np.dtype(np.float32), chunks)


def _fill(
    reader: QueryReader,
    columns: Sequence[FeatureColumn],
    batch: Any,
    first: int,
    rows: NDArray[np.float32],
) -> None:
    """Fill rows of features, [n, columns], from a batch whose first row is ``first``."""
    start = 0
    for column, values in zip(columns, batch.columns, strict=True):
        part = rows[:, start : start + column.width]
        start += column.width
        if column.categories:
            part[:] = values.to_numpy()[:, None] == np.arange(column.width)
            continue
        numbers = reader.attempt(column.name, _read_numbers, reader, values, column, first)
        with np.errstate(over="ignore"):
            part[:] = 0 if numbers is None else numbers


def _read_numbers(
    reader: QueryReader, values: Any, column: FeatureColumn, first: int
) -> NDArray[Any]:
    """Return [n, numbers] of a column of numbers or of lists of numbers."""
    is_list = reader.kind(column.name) == "list"
    expected = f"{column.numbers} numbers, as in the first row"
    expected = expected if is_list else reader.expect_number(column.name)
    if expected:
        reader.refuse_nulls(values, first, column.name, expected)
    values = values.flatten() if is_list else values
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, column.numbers)


class QueryTexts(Sequence[str]):
    """The texts of a column, read when they are asked for."""

    def __init__(self, reader: QueryReader, name: str) -> None:
        self._reader, self._sql = reader, f"{reader.column(name)}::VARCHAR"

    def __len__(self) -> int:
        return self._reader.count

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return str(self._reader.first(self._sql, f"WHERE rowid = {range(len(self))[row]}"))

    def __iter__(self) -> Iterator[str]:
        for _, batch in self._reader.scan(self._sql):
            yield from batch.column(0).to_pylist()
