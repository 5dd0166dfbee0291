"""Propose the queries of a database: its tables as node types, its foreign keys as relations."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hopper.errors import GraphError, HopperError
from hopper.files.addresses import hide_passwords, without_password
from hopper.files.whole_files import write_text
from hopper.graph.importers.database import find_numeric, open_database_of
from hopper.graph.importers.query import quote_name, quote_text, toml_text
from hopper.graph.importers.query_features import MOST_CATEGORIES
from hopper.graph.importers.source_files import first_line
from hopper.graph.layout import safe_name

_HEAD: Final = """\
# Proposed by hopper dataset import database. Say what is predicted: let the query of some nodes
# return a column label (a class) or value (a number), and a column split, or draw one by --split.
# What stands behind -- is no feature as it is.
"""
_ROWS: Final = 1000
"""Rows by which columns without a declared type are judged."""
_Run = Callable[[str], Any]
"""runs a query, and returns a pyarrow table"""


@dataclass
class KeyedTable:
    """A table of a database, and what its columns mean."""

    name: str
    """of the node type"""
    source: str
    """what follows FROM in the database's SQL"""
    kinds: Mapping[str, str]
    """what its columns hold, by name: "number", "time", "text", or a remark on why they are no
    features"""
    key: str
    """the column that identifies a row; "" = none does"""
    references: Mapping[str, str]
    """the table that a column refers to, by column"""
    time: str
    """the column of when a row came to be; "" = none"""

    @classmethod
    def read(
        cls,
        run: _Run,
        name: str,
        source: str,
        key: str = "",
        references: Mapping[str, str] | None = None,
        time: str = "",
        times: Collection[str] = (),
    ) -> KeyedTable:
        """Read what the columns of a table hold, and count the texts of those that have some; the
        texts of ``times`` are dates."""
        schema = run(f"SELECT * FROM {source} LIMIT {_ROWS}").schema  # noqa: S608
        keys = {key, *(references or {})}
        kinds = {one.name: _kind(one.type) for one in schema}
        kinds |= dict.fromkeys(find_numeric(schema), "number")
        kinds |= {column: "time" for column in times if kinds.get(column) == "text"}
        texts = [column for column, kind in kinds.items() if kind == "text" and column not in keys]
        if texts:
            # Postgres would name all of them "count".
            counts = ", ".join(
                f"count(DISTINCT {quote_name(column)}) AS c{place}"
                for place, column in enumerate(texts)
            )
            row = run(f"SELECT {counts} FROM {source}").to_pylist()[0]  # noqa: S608
            for column, count in zip(texts, row.values(), strict=True):
                if count > MOST_CATEGORIES:
                    kinds[column] = f"{count:,} different texts"
        found = [column for column, kind in kinds.items() if kind == "time"]
        return cls(name, source, kinds, key, references or {}, time or (found or [""])[0])

    @property
    def id(self) -> str:
        """What identifies a row, in SQL."""
        return quote_name(self.key) if self.key else "row_number() OVER ()"

    @property
    def is_link(self) -> bool:
        """Whether it only joins two other tables."""
        return not self.key and len(self.references) == 2


def propose_queries(source: str, out: Path) -> None:
    """Write the file of queries that describes a database as a graph.

    The source is ``postgresql://...``, ``sqlite:PATH``, ``duckdb:PATH``, or a folder that
    ``relbench.base.Database.save`` has written. A GraphError tells that it cannot be read, or has
    no tables; a RequestError that a driver is not installed.
    """
    if out.exists():
        raise GraphError(f"{out}: expected no such file, found one; remove it, or choose another")
    head = f"\n[databases]\ndb = {json.dumps(without_password(source))}\n"
    with hide_passwords():
        try:
            if Path(source).is_dir():
                head, tables = "", list(_read_relbench(Path(source).absolute()))
            elif source.startswith("duckdb:"):
                tables = list(_read_duckdb(source.removeprefix("duckdb:")))
            else:
                with open_database_of(source, Path()) as connection:
                    tables = list(_read_adbc(connection))
                head += "\n[tables]\n"
                for table in tables:
                    sql = f"SELECT * FROM {table.source}"  # noqa: S608
                    words = f'database = "db", sql = {json.dumps(sql, ensure_ascii=False)}'
                    head += f"{table.name} = {{{words}}}\n"
                    table.source = quote_name(table.name)
        except HopperError:
            raise
        except Exception as error:  # of a driver, DuckDB or pyarrow
            raise GraphError(f"{source}: cannot be read: {first_line(error)}") from error
    if not tables:
        raise GraphError(f"{without_password(source)}: expected tables, given none")
    write_text(out, _HEAD + head + "".join(_describe(tables)))


def _read_adbc(connection: Any) -> Iterator[KeyedTable]:
    def run(sql: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    for catalog in connection.adbc_get_objects(depth="all").read_all().to_pylist():
        for schema in catalog["catalog_db_schemas"] or ():
            prefix = schema["db_schema_name"]
            if prefix in ("information_schema", "pg_catalog", "pg_toast"):
                continue
            for table in schema["db_schema_tables"] or ():
                name = table["table_name"]
                if table["table_type"].lower() != "table" or name.startswith("sqlite_"):
                    continue
                key, references = "", {}
                for rule in table["table_constraints"] or ():
                    columns = rule["constraint_column_names"]
                    if len(columns) == 1 and rule["constraint_type"] == "PRIMARY KEY":
                        key = columns[0]
                    if len(columns) == 1 and rule["constraint_type"] == "FOREIGN KEY":
                        usage = rule["constraint_column_usage"]
                        references[columns[0]] = safe_name(usage[0]["fk_table"])
                source = ".".join(map(quote_name, filter(None, (prefix, name))))
                # SQLite has dates as texts.
                times = [
                    column["column_name"]
                    for column in table["table_columns"] or ()
                    if (column["xdbc_type_name"] or "").upper().startswith(("DATE", "TIME"))
                ]
                read = run, safe_name(name), source, key, references
                yield KeyedTable.read(*read, times=times)


def _read_duckdb(path: str) -> Iterator[KeyedTable]:
    import duckdb

    with duckdb.connect(path, read_only=True) as connection:

        def run(sql: str) -> Any:
            return connection.execute(sql).to_arrow_table()

        keys, references = dict[str, str](), dict[str, dict[str, str]]()
        for rule in run("FROM duckdb_constraints()").to_pylist():
            columns, table = rule["constraint_column_names"], rule["table_name"]
            if len(columns) == 1 and rule["constraint_type"] == "PRIMARY KEY":
                keys[table] = columns[0]
            if len(columns) == 1 and rule["constraint_type"] == "FOREIGN KEY":
                referenced = safe_name(rule["referenced_table"])
                references.setdefault(table, {})[columns[0]] = referenced
        for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            of_table = keys.get(name, ""), references.get(name, {})
            read = KeyedTable.read(run, safe_name(name), quote_name(name), *of_table)
            read.source = f"db.{quote_name(name)}"
            yield read


def _read_relbench(folder: Path) -> Iterator[KeyedTable]:
    """Read tables in Parquet whose keys are in the files' metadata (relbench/base/table.py)."""
    import duckdb
    import pyarrow.parquet

    with duckdb.connect() as connection:
        for file in sorted(folder.glob("*.parquet")):
            found = pyarrow.parquet.read_schema(file).metadata or {}
            names = ("fkey_col_to_pkey_table", "pkey_col", "time_col")
            references, key, time = (json.loads(found.get(n.encode(), b"null")) for n in names)
            refers = {column: safe_name(table) for column, table in (references or {}).items()}
            yield KeyedTable.read(
                lambda sql: connection.execute(sql).to_arrow_table(),
                safe_name(file.stem),
                quote_text(str(file)),
                key or "",
                refers,
                time or "",
            )


def _describe(tables: Sequence[KeyedTable]) -> Iterator[str]:
    """Return the parts of a file of queries."""
    names = {table.name for table in tables}
    yield "\n[nodes]\n"
    for table in tables:
        if not table.is_link:
            yield _query(table.name, table, [f"{table.id} AS id"])
    yield "\n[edges]\n"
    for table in tables:
        if table.is_link:
            (src, first), (dst, second) = table.references.items()
            ends = [f"{quote_name(src)} AS src", f"{quote_name(dst)} AS dst"]
            yield _query(f'"{first}/{table.name}/{second}"', table, ends)
            continue
        for column, other in table.references.items():
            if other in names:
                end, source = quote_name(column), table.source
                every = f"FROM {source} SELECT {table.id} AS src, {end} AS dst"
                sql = f"FROM ({every})\nWHERE dst IS NOT NULL"
                yield f'"{table.name}/{safe_name(column)}/{other}" = {toml_text(sql)}\n'


def _query(name: str, table: KeyedTable, columns: list[str]) -> str:
    """Return the query of a table with further columns as features, and one with the time."""
    remarks = []
    for column, kind in table.kinds.items():
        quoted = quote_name(column)
        if column == table.time and kind == "time":
            columns.append(f"{quoted} AS time")
        elif column == table.key or column in table.references:
            continue
        elif kind == "time":
            columns.append(f"epoch({quoted}::TIMESTAMP) / 86400 AS {quoted}")
        elif kind in ("number", "text"):
            columns.append(quoted)
        else:
            remarks.append(f"       -- {quoted}: {kind}\n")
    listed = ",\n       ".join(columns)
    sql = f"SELECT {listed}\n{''.join(remarks)}FROM {table.source}"
    return f"{name} = {toml_text(sql)}\n"


def _kind(arrow_type: Any) -> str:
    """Return what a column of an Arrow type holds, as :class:`KeyedTable` has it."""
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if types.is_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        is_number = _kind(arrow_type.value_type) == "number"
        return "number" if is_number else f"values of type {arrow_type}"
    numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    if any(holds(arrow_type) for holds in numbers):
        return "number"
    if types.is_timestamp(arrow_type) or types.is_date(arrow_type):
        return "time"
    is_text = types.is_string(arrow_type) or types.is_large_string(arrow_type)
    return "text" if is_text else f"values of type {arrow_type}"
