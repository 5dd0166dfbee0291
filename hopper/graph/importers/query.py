"""A query whose result is a table of nodes or edges, and a reader of its columns.

Every source that DuckDB reads becomes queries: the files of a folder (table_folder.py), or whatever
SQL returns. Errors name the file, the row or line, and the column.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import release_pages
from hopper.graph.importers.database import Database, DatabaseError
from hopper.graph.importers.encode import LikeGraph
from hopper.graph.importers.source_files import first_line
from hopper.graph.importers.tables import GraphTables
from hopper.graph.schema import Labelled

INTEGERS: Final = (
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
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


@dataclass(frozen=True)
class Query:
    """A query whose rows are the nodes of a type, or the edges of a relation, in order."""

    owner: Labelled
    where: str
    """what is queried, for errors; the path of a file of texts"""
    sql: str
    """returns the columns ``c0``, ``c1``, ... and if it is numbered, ``rowid``"""
    names: Sequence[str]
    """the source's names of these columns: ``id``, ``src``, ``dst``, ``weight``, ``time``,
    ``split``, columns of labels, and features"""
    typed: bool = True
    """whether columns have types; otherwise all are texts of CSV, which may hold numbers"""
    numbered: bool = False
    """whether it returns the same rows, with their numbers, each time; else it is run once"""

    @classmethod
    def of_types(
        cls, owner: Labelled, where: str, source: str, database: Database, *, numbered: bool = False
    ) -> Query:
        """Make the query of what SQL has after FROM, whose columns have names and types; if it is
        numbered, the last one is the number of the row."""
        query = cls(owner, where, "", (), numbered=numbered)
        with query.explain_errors(database):
            names = [str(name) for name, *_ in database.fetch(f"DESCRIBE FROM {source}")]
        columns = [f"c{place}" for place in range(len(names))]
        if numbered:
            names, columns = names[:-1], [*columns[:-1], "rowid"]
        return replace(query, sql=f"FROM {source} AS t({', '.join(columns)})", names=names)

    @property
    def header(self) -> str:
        """Where the names of columns stand, for errors."""
        return self.where if self.typed else f"{self.where}: line 1"

    def place(self, row: int) -> str:
        """Return where a row stands, for errors; in CSV this looks for its line."""
        if self.typed:
            return f"{self.where}: row {row}"
        with open(self.where, newline="", encoding="utf-8-sig", errors="replace") as stream:
            reader = csv.reader(stream)
            # The header is a line too, and lines without any value are none.
            next(islice((values for values in reader if values), row + 1, None), None)
            return f"{self.where}: line {reader.line_num}"

    @contextmanager
    def explain_errors(self, database: Database) -> Iterator[None]:
        """Raise the database's errors of reading the source with what is queried, and the line."""
        try:
            with database.explain_errors(self.where):
                yield
        except DatabaseError as error:
            text = str(error.__cause__ or error)
            if self.typed:
                reason = first_line(error.__cause__ or error)
                raise GraphError(f"{self.where}: cannot be read: {reason}") from error
            line = re.search(r"CSV Error on Line: (\d+)", text)
            place = f"{self.where}: line {line[1]}" if line else self.where
            if columns := re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", text):
                reason = f"expected {columns[1]} columns, given {columns[2]}"
            elif "state machine reached an invalid state" in text:
                reason = "cannot be read as CSV: expected lines that all end alike"
            else:
                known = re.search(r"^(Value with|Invalid unicode|Maximum line).*", text, re.M)
                reason = f"cannot be read as CSV: {known[0] if known else text.splitlines()[0]}"
            raise GraphError(f"{place}: {reason}") from error


class QueryReader:
    """Reads the columns of a query's result; what is wrong with one is a problem of the source.

    Features and classes are encoded as ``like`` says, or anew. ``rows`` has the columns of texts
    that are numbers of rows, and how many rows there are. They become numbers, NULL where a text is
    no such number.
    """

    def __init__(
        self,
        query: Query,
        database: Database,
        tables: GraphTables,
        like: LikeGraph | None,
        rows: Mapping[str, int],
    ) -> None:
        self.query, self.database, self.like, self.rows = query, database, like, rows
        self.problems, self.notes = tables.problems, tables.notes
        self.table, self.ids_are_rows = database.new_name("t"), False
        """the table's name, and whether the id of each node is the number of its row"""
        kind, sql = "VIEW" if query.numbered else "TABLE", query.sql
        if rows:
            numbers = ", ".join(
                f"{row_number(self.column(name), count, is_text=True)} AS {self.column(name)}"
                for name, count in rows.items()
            )
            # Numbers take a third of the time of texts to keep.
            sql = f"SELECT * REPLACE ({numbers}) FROM ({sql})"  # noqa: S608 # names are made here
        database.release()
        with query.explain_errors(database):
            database.fetch(f"CREATE {kind} {self.table} AS {sql}")
            self.count = int(self.first("count(*)"))
        described = database.fetch(f"DESCRIBE {self.table}")
        self.types = {name: str(row[1]) for name, row in zip(query.names, described, strict=False)}

    def attempt(self, field: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Take a step of reading a column, and keep what is wrong with it; None if anything is."""
        return self.problems.attempt(self.query.where, field, step, *arguments)

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

    def number_or_nan(self, name: str) -> tuple[str, str]:
        """Return a column of numbers in SQL, and what should stand where it is NULL; "" = NULL is a
        missing number."""
        number = self.number(name)
        if self.kind(name) != "text":
            return number, ""
        finite = f"{number} > '-inf'::DOUBLE AND {number} < 'inf'::DOUBLE"
        missing = f"{self.text(name)} IS NULL"
        sql = f"CASE WHEN {missing} THEN 'nan'::DOUBLE WHEN {finite} THEN {number} END"
        return sql, "a finite number"

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
            f"{self.query.where}: column {name}: expected {expected}, given {self.types[name]}"
        )

    def refuse(self, row: int, name: str, expected: str) -> GraphError:
        """Make the error that a value is wrong."""
        if name in self.rows:
            text = f"SELECT {self.column(name)} FROM ({self.query.sql}) LIMIT 1 OFFSET {row}"  # noqa: S608
            ((value,),) = self.database.fetch(text)
        else:
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
        """Read a column in SQL into an array, which is new unless one is given; a NULL is refused,
        as what is not ``expected``, or is NaN."""
        array = self.database.array(dtype, (self.count,)) if out is None else out
        for first, batch in self.scan(sql):
            self.keep(array, first, batch.column(0), name, expected)
        return array

    def keep(
        self, array: NDArray[Any], first: int, values: Any, name: str, expected: str = ""
    ) -> None:
        """Write a pyarrow array into the rows of an array from ``first`` on, as :meth:`read`."""
        if expected:
            self.refuse_nulls(values, first, name, expected)
        with np.errstate(over="ignore"):
            array[first : first + len(values)] = values.to_numpy(zero_copy_only=False)
        release_pages(array)

    def encode(self, name: str, known: Sequence[str] | None, what: str) -> tuple[list[str], str]:
        """Number the texts of a column in sorted order, or as known ones are; tell of unknown ones.

        Returns the texts in order, and their numbers in SQL; -1 for others and where there is none.
        """
        text, kinds = self.text(name), self.database.new_name("e")
        values = self.select(f"DISTINCT {text}", f"WHERE {text} IS NOT NULL ORDER BY 1")
        if known:
            values = ", ".join(map(quote_text, known))
        self.database.fetch(f"CREATE TYPE {kinds} AS ENUM ({values})")
        names = self.database.fetch(f"SELECT unnest(enum_range(NULL::{kinds}))::VARCHAR")
        code = f"coalesce(enum_code(TRY_CAST({text} AS {kinds}))::BIGINT, -1)"
        if known and self.like is not None:
            rest = f"WHERE {text} IS NOT NULL AND {code} < 0 GROUP BY 1"
            unknown = dict(self.database.fetch(self.select(f"{text}, count(*)", rest)))
            self.notes += self.like.tell_unknown(self.query.owner, what, unknown, known)
        return [text for (text,) in names], code


def row_number(column: str, count: int, *, is_text: bool) -> str:
    """Return the row of ``count`` rows that a column has as id, in SQL; NULL where it has none."""
    row = f"TRY_CAST({column} AS {'INTEGER' if count < 2**31 else 'BIGINT'})"
    same = f"{row}::VARCHAR = {column}" if is_text else f"{row} = {column}"
    return f"CASE WHEN {same} AND {row} >= 0 AND {row} < {count} THEN {row} END"


def quote_text(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Return the name of a column or a table as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def toml_text(text: str) -> str:
    """Return a text of several lines as TOML has it."""
    escaped = text.replace("\\", "\\\\").replace('"""', '""\\"')
    return f'"""\n{escaped}\n"""'


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
