"""Turn a folder of CSV or Parquet tables into queries, one for each node type and each relation.

The files and columns are specified in docs/howto/import.md.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from hopper.errors import GraphError
from hopper.graph.importers.database import Database, DatabaseError
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import read_relation
from hopper.graph.layout import check_name
from hopper.graph.schema import Labelled, Relation

Suffix = Literal["csv", "parquet"]
_CSV_OPTIONS: Final = (
    "auto_detect=false, header=true, delim=',', quote='\"', escape='\"', nullstr='', "
    "allow_quoted_nulls=false, strict_mode=true, hive_partitioning=false"
)


@dataclass(frozen=True)
class Query:
    """A query whose rows are the nodes of a type, or the edges of a relation, in order.

    Attributes
    ----------
    file: what is queried, for errors.
    sql: returns the columns ``c0``, ``c1``, ... and if it is numbered, ``rowid``.
    names: the source's names of these columns: ``id``, ``src``, ``dst``, ``weight``, ``time``,
        ``split``, columns of labels, and features.
    typed: whether columns have types; otherwise all are texts, and numbers may be written in them.
    numbered: whether it returns the same rows, with their numbers, each time that it is run.
        Otherwise it is run once.
    """

    owner: Labelled
    file: Path
    sql: str
    names: Sequence[str]
    typed: bool
    numbered: bool

    @property
    def header(self) -> str:
        """Where the names of columns stand, for errors."""
        return f"{self.file}" if self.typed else f"{self.file}: line 1"

    def place(self, row: int) -> str:
        """Return where a row stands, for errors; in CSV this looks for its line."""
        if self.typed:
            return f"{self.file}: row {row}"
        with self.file.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            reader = csv.reader(stream)
            # The header is a line too, and lines without any value are none.
            next(islice((values for values in reader if values), row + 1, None), None)
            return f"{self.file}: line {reader.line_num}"

    @contextmanager
    def explain_errors(self, database: Database) -> Iterator[None]:
        """Raise the database's errors of reading the source with the file and the line."""
        try:
            with database.explain_errors(str(self.file)):
                yield
        except DatabaseError as error:
            text = str(error.__cause__ or error)
            if self.typed:
                raise GraphError(
                    f"{self.file}: not readable as Parquet: {first_line(error.__cause__ or error)}"
                ) from error
            line = re.search(r"CSV Error on Line: (\d+)", text)
            place = f"{self.file}: line {line[1]}" if line else str(self.file)
            if columns := re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", text):
                reason = f"expected {columns[1]} columns, given {columns[2]}"
            elif "state machine reached an invalid state" in text:
                reason = "cannot be read as CSV: expected lines that all end alike"
            else:
                known = re.search(r"^(Value with|Invalid unicode|Maximum line).*", text, re.M)
                reason = f"cannot be read as CSV: {known[0] if known else text.splitlines()[0]}"
            raise GraphError(f"{place}: {reason}") from error


def find_queries(
    folder: Path, suffix: Suffix, database: Database, problems: Problems
) -> dict[Labelled, Query]:
    """Find the tables of a folder: those of node types first, then those of relations.

    A file whose name or header is wrong is a problem, and is left out.
    """
    if not folder.is_dir():
        raise GraphError(f"{folder}: not a directory")
    owners: dict[Labelled, Path] = {}
    namers: dict[str, Callable[..., Labelled]] = {"nodes": _name_type, "edges": _name_relation}
    for prefix, name_owner in namers.items():
        for file in sorted(folder.glob(f"{prefix}*.{suffix}")):
            if file.stem == prefix or file.stem.startswith(f"{prefix}__"):
                owner = problems.attempt(file, "name", name_owner, file, owners)
                if owner is not None:
                    owners[owner] = file
        if not owners and not problems:
            raise GraphError(
                f"{folder}: expected nodes.{suffix} or nodes__<type>.{suffix}, given neither"
            )
    make = _query_csv if suffix == "csv" else _query_parquet
    queries = {
        owner: problems.attempt(file, "table", make, owner, file, database)
        for owner, file in owners.items()
    }
    return {owner: query for owner, query in queries.items() if query is not None}


def read_header(file: Path) -> list[str]:
    """Read the names of the columns of a CSV file."""
    try:
        require_file(file, "table")
        # Only the header is checked here.
        with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as stream:
            header = next(csv.reader(stream, strict=True), [])
        "".join(header).encode()
    except (OSError, UnicodeError, csv.Error) as error:
        raise GraphError(f"{file}: cannot be read as CSV: {error}") from error
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    if not header or repeated:
        raise GraphError(
            f"{file}: line 1: expected a header of distinct columns, given {repeated or 'nothing'}"
        )
    return header


def _query_csv(owner: Labelled, file: Path, database: Database) -> Query:
    names = read_header(file)
    columns = ", ".join(f"c{number}: 'VARCHAR'" for number in range(len(names)))
    sql = f"FROM read_csv({_path(file)}, {_CSV_OPTIONS}, columns={{{columns}}})"
    if len(names) == 1:
        # An empty line, which would be a row of one missing value.
        sql += " WHERE c0 IS NOT NULL"
    return Query(owner, file, sql, names, typed=False, numbered=False)


def _query_parquet(owner: Labelled, file: Path, database: Database) -> Query:
    require_file(file, "table")
    source = f"read_parquet({_path(file)}, file_row_number=true, hive_partitioning=false)"
    query = Query(owner, file, "", [], typed=True, numbered=True)
    with query.explain_errors(database):
        described = database.fetch(f"DESCRIBE FROM {source}")
    names = [str(name) for name, *_ in described if name != "file_row_number"]
    columns = ", ".join(f"c{number}" for number in range(len(names)))
    sql = f"FROM {source} AS t({columns}, rowid)"
    return Query(owner, file, sql, names, typed=True, numbered=True)


def _path(file: Path) -> str:
    """Return a file's path as text of SQL; characters of patterns stand for themselves."""
    plain = re.sub(r"[*?\[]", lambda found: f"[{found[0]}]", str(file.absolute()))
    return quote_text(plain)


def quote_text(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def _name_type(file: Path, taken: Mapping[Any, Any]) -> str:
    """Return the node type that a file's name tells."""
    node_type = _split_file_name(file, 1, ["node"])[0]
    if node_type in taken:
        raise GraphError(f"{file}: node type {node_type} has two tables")
    return node_type


def _name_relation(file: Path, taken: Mapping[Any, Any]) -> Relation:
    """Return the relation that a file's name tells, whose node types have tables."""
    relation = read_relation(_split_file_name(file, 3, ["node", "edge", "node"]), taken, str(file))
    for end in (relation.src, relation.dst):
        if end not in taken:
            raise GraphError(f"{file}: expected a table nodes__{end}{file.suffix}, given none")
    return relation


def _split_file_name(file: Path, count: int, default: list[str]) -> list[str]:
    """Split a file's name at ``__`` into names of types and relations."""
    _, *names = file.stem.split("__")
    if not names:
        return default
    if len(names) != count:
        raise GraphError(f"{file}: expected {count} names after the first __, given {names}")
    return [check_name(name, "name", str(file)) for name in names]
