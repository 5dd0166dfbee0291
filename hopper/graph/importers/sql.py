"""Import a graph that SQL queries describe: of files, of databases, and of tables in memory.

The file of queries is specified in docs/howto/import-sql.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter

from hopper.errors import GraphError, HopperError
from hopper.files.addresses import hide_passwords
from hopper.graph.importers.database import (
    Database,
    find_numeric,
    open_database,
    open_database_of,
)
from hopper.graph.importers.encode import LikeGraph
from hopper.graph.importers.query import Query, quote_text
from hopper.graph.importers.read_query import read_queries
from hopper.graph.importers.source_files import explain_errors, require_file
from hopper.graph.importers.tables import GraphTables, read_relation
from hopper.graph.importers.text_encoders import EncoderFunction
from hopper.graph.importers.write_graph import ImportOptions, write_tables
from hopper.graph.json_file import parse_json
from hopper.graph.layout import check_name
from hopper.graph.schema import Labelled
from hopper.timing.phases import Phases, Progress

_URL: Final = re.compile(r"['\"]([a-z][a-z0-9+.-]*)://", re.I)
"""The protocol of an address in a query."""
_PLACE: Final = re.compile(r"^LINE (\d+): (.*)$", re.M)
"""Where DuckDB found an error: the number of the line, and its text."""


@dataclass(frozen=True)
class DatabaseQuery:
    """A query that a database runs, in its own SQL; its result is streamed."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    database: str
    """the database's name in :attr:`GraphQueries.databases`"""
    sql: str
    """the query"""


@dataclass(frozen=True)
class GraphQueries:
    """The queries that describe a graph. Each is a text in the SQL of DuckDB, or what another
    database runs."""

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    nodes: Mapping[str, str | DatabaseQuery]
    """by node type, what returns its nodes"""
    edges: Mapping[str, str | DatabaseQuery] = field(default_factory=dict)
    """by relation, as "src/rel/dst", what returns its edges"""
    tables: Mapping[str, str | DatabaseQuery | object] = field(default_factory=dict)
    """by name, further tables that queries in DuckDB's SQL may read, made in this order; from
    Python also what DuckDB can read, such as a pandas, Polars or Arrow table"""
    databases: Mapping[str, str] = field(default_factory=dict)
    """by name, the address of a database"""
    encoders: Mapping[str, EncoderFunction] = field(default_factory=dict)
    """by name, functions for queries in DuckDB's SQL that encode texts"""
    name: str = ""
    """name of the graph"""

    @classmethod
    def make(cls, values: Mapping[str, Any], where: str) -> GraphQueries:
        """Make queries of a mapping of their fields; a GraphError names what is wrong."""
        with hide_passwords():
            return parse_json(TypeAdapter(cls), values, where)


def read_queries_file(file: Path) -> GraphQueries:
    """Read a TOML file of queries; a GraphError names what is wrong with it."""
    require_file(file, "queries")
    with explain_errors(f"{file}: not valid TOML", OSError, ValueError):
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    return GraphQueries.make(content, str(file))


def import_sql(
    queries: GraphQueries,
    out: Path,
    options: ImportOptions,
    *,
    file: Path | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Run queries and write a graph directory, as ``import_graph`` does.

    ``file`` is where the queries stand. Paths in them are relative to its folder, or else to the
    current one.
    """
    like = LikeGraph.open(options.encode_like, options.unknown_category)
    name = queries.name or (file.stem if file else "graph")
    with hide_passwords(), open_database(out, options.memory_limit, Phases(progress)) as database:
        tell(f"memory: at most {database.limit / 2**30:.2f} GiB (--memory-limit)")
        tables = GraphTables(name, f"queries of {file.name if file else 'Python'}")
        source = _Source(queries, file, database, tell)
        found, follows = list(source.find_queries(tables)), bool(options.targets)
        where = str(file or "queries")
        read_queries(found, database, tables, where, follows=follows, like=like)
        return write_tables(tables, out, options, database)


class _Source:
    """Makes the tables that queries read, and the queries of nodes and edges."""

    def __init__(
        self,
        queries: GraphQueries,
        file: Path | None,
        database: Database,
        tell: Callable[[str], None],
    ) -> None:
        self._queries, self._database = queries, database
        self._prefix, self._folder = (f"{file}: ", file.parent) if file else ("", Path())
        folder = quote_text(str(self._folder.absolute()))
        database.fetch(f"SET GLOBAL file_search_path = {folder}")
        # Otherwise queries would fetch extensions.
        database.fetch("SET GLOBAL autoinstall_known_extensions = false")
        self._attached, self._protocols = set[str](), set[str]()
        for name, url in queries.databases.items():
            with self._explain(f"databases.{name}"):
                check_name(name, "name", "")
                if url.startswith("duckdb:"):
                    path = quote_text(str(self._folder / url.removeprefix("duckdb:")))
                    database.fetch(f'ATTACH {path} AS "{name}" (READ_ONLY)')
                    self._attached.add(name)
        for name, encoder in queries.encoders.items():
            with self._explain(f"encoders.{name}"):
                texts = encoder.make(check_name(name, "name", ""), self._folder, tell)
                # NULL stays NULL.
                database.connection.create_function(
                    name, texts, ["VARCHAR"], "FLOAT[]", type="arrow"
                )
        for name, table in queries.tables.items():
            with self._explain(f"tables.{name}"):
                self._make_table(check_name(name, "name", ""), table)

    def find_queries(self, tables: GraphTables) -> Iterator[Query]:
        """Return the queries of node types, then those of relations; one that cannot be run is a
        problem of the source, and is left out."""
        owners: dict[Labelled, tuple[str, str | DatabaseQuery]] = {}
        for name, sql in self._queries.nodes.items():
            place = f"{self._prefix}nodes.{name}"
            node_type = tables.problems.attempt(place, "name", check_name, name, "name", place)
            owners |= {node_type: (place, sql)} if node_type else {}
        for text, sql in self._queries.edges.items():
            place = f"{self._prefix}edges.{text}"
            relation = tables.problems.attempt(place, "name", _read_relation, text, owners, place)
            owners |= {relation: (place, sql)} if relation else {}
        for owner, (place, sql) in owners.items():
            query = tables.problems.attempt(place, "table", self._make_query, owner, place, sql)
            if query is not None:
                yield query

    def _make_query(self, owner: Labelled, place: str, source: str | DatabaseQuery) -> Query:
        with self._explain(place.removeprefix(self._prefix)):
            sql = self._own_sql(source)
            if not sql:
                name = self._database.new_name("q")
                self._make_table(name, source)
                sql = f"FROM {name}"  # names are made here
            return Query.of_types(owner, place, f"({sql}\n)", self._database)

    def _own_sql(self, source: object) -> str:
        """Return the query if DuckDB runs it, checked and with what it needs; else an empty one."""
        is_attached = isinstance(source, DatabaseQuery) and source.database in self._attached
        sql = source.sql if isinstance(source, DatabaseQuery) and is_attached else source
        if not isinstance(sql, str):
            return ""
        import fsspec

        for protocol in {found.lower() for found in _URL.findall(sql)} - self._protocols:
            self._database.connection.register_filesystem(fsspec.filesystem(protocol))
            self._protocols.add(protocol)
        return self._database.check_select(sql)

    def _make_table(self, name: str, source: object) -> None:
        """Make a table of a query, or of a table in memory."""
        sql = self._own_sql(source)
        if sql:
            self._database.fetch(f'CREATE TABLE "{name}" AS {sql}')
        elif isinstance(source, DatabaseQuery):
            url = self._queries.databases.get(source.database)
            if url is None:
                known = ", ".join(self._queries.databases) or "none"
                raise GraphError(f"database: expected one of {known}, given {source.database!r}")
            with open_database_of(url, self._folder) as connection, connection.cursor() as cursor:
                cursor.execute(source.sql)
                reader = cursor.fetch_record_batch()
                self._database.copy(name, reader, find_numeric(reader.schema))
        else:
            self._database.copy(name, source)

    @contextmanager
    def _explain(self, place: str) -> Iterator[None]:
        """Raise errors of preparing a query with its name, and the line that is wrong."""
        try:
            yield
        except HopperError as error:
            raise type(error)(f"{self._prefix}{place}: {str(error).removeprefix(': ')}") from error
        except Exception as error:  # of DuckDB, a database's driver or a file system
            text, line = str(error).strip(), _PLACE.search(str(error))
            reason = text.splitlines()[0] if text else type(error).__name__
            at = f" (line {line[1]}: {line[2].strip()})" if line else ""
            raise GraphError(f"{self._prefix}{place}: {reason}{at}") from error


def _read_relation(text: str, taken: Mapping[Labelled, Any], place: str) -> Labelled:
    """Return the relation of a key, whose node types must have queries."""
    names = text.split("/")
    if len(names) != 3:
        raise GraphError(f"{place}: expected src/rel/dst, given {text!r}")
    return read_relation(names, taken, place, "a query nodes.{}")
