"""Turn a folder of CSV or Parquet tables into queries, and import it within a limit of memory.

The files and columns are specified in docs/howto/import.md.
"""

from __future__ import annotations

import csv
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from hopper.errors import GraphError, RequestError
from hopper.graph.importers.database import Database, open_database
from hopper.graph.importers.encode import LikeGraph
from hopper.graph.importers.query import Query, quote_text
from hopper.graph.importers.read_query import read_queries
from hopper.graph.importers.source_files import explain_errors, require_file
from hopper.graph.importers.tables import GraphTables, Problems, read_relation
from hopper.graph.importers.write_graph import ImportOptions, write_tables
from hopper.graph.layout import check_name
from hopper.graph.schema import Labelled
from hopper.timing.phases import Phases, Progress

Suffix = Literal["csv", "parquet"]
_KINDS: Final = {"csv": "CSV", "parquet": "Parquet"}
_DISK: Final = 5
"""Bytes on disk for a byte of the tables: they themselves, what is sorted, and the graph."""
_CSV_OPTIONS: Final = (
    "auto_detect=false, header=true, delim=',', quote='\"', escape='\"', nullstr='', "
    "allow_quoted_nulls=false, strict_mode=true, hive_partitioning=false"
)


def import_folder(
    folder: Path,
    suffix: Suffix,
    out: Path,
    options: ImportOptions,
    *,
    name: str | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Read a folder of tables and write a graph directory, as ``import_graph`` does."""
    like = LikeGraph.open(options.encode_like, options.unknown_category)
    with open_database(out, options.memory_limit, Phases(progress)) as database:
        tell(_estimate(folder, suffix, out, database))
        tables = GraphTables(name or folder.name, f"{_KINDS[suffix]} tables {folder.name}")
        queries = find_queries(folder, suffix, database, tables.problems)
        follows = bool(options.targets)
        read_queries(queries, database, tables, str(folder), follows=follows, like=like)
        return write_tables(tables, out, options, database)


def _estimate(folder: Path, suffix: Suffix, out: Path, database: Database) -> str:
    """Say how much memory and disk the import may take."""
    needed = _DISK * sum(file.stat().st_size for file in folder.glob(f"*.{suffix}"))
    free = shutil.disk_usage(database.folder).free
    if needed > free:
        raise RequestError(
            f"{out.absolute().parent}: too little disk space: about {needed / 2**30:.2f} GiB "
            f"needed for the graph and what is spilled, {free / 2**30:.2f} GiB available"
        )
    return (
        f"memory: at most {database.limit / 2**30:.2f} GiB (--memory-limit); disk: about "
        f"{needed / 2**30:.2f} GiB while it works, {free / 2**30:.2f} GiB available"
    )


def find_queries(
    folder: Path, suffix: Suffix, database: Database, problems: Problems
) -> list[Query]:
    """Find the tables of a folder: those of node types first, then those of relations. A file whose
    name or header is wrong is a problem, and is left out."""
    if not folder.is_dir():
        raise GraphError(f"{folder}: not a directory")
    owners: dict[Labelled, Path] = {}
    for prefix in ("nodes", "edges"):
        for file in sorted(folder.glob(f"{prefix}*.{suffix}")):
            if file.stem == prefix or file.stem.startswith(f"{prefix}__"):
                owner = problems.attempt(file, "name", _name_owner, file, owners)
                if owner is not None:
                    owners[owner] = file
        if not owners and not problems:
            raise GraphError(
                f"{folder}: expected nodes.{suffix} or nodes__<type>.{suffix}, given neither"
            )
    queries = [
        problems.attempt(file, "table", _make_query, owner, file, database)
        for owner, file in owners.items()
    ]
    return [query for query in queries if query is not None]


def _read_header(file: Path) -> list[str]:
    """Read the names of the columns of a CSV file."""
    with explain_errors(f"{file}: cannot be read as CSV", OSError, UnicodeError, csv.Error):
        # Only the header is checked here.
        with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as stream:
            header = next(csv.reader(stream, strict=True), [])
        "".join(header).encode()
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    if not header or repeated:
        raise GraphError(
            f"{file}: line 1: expected a header of distinct columns, given {repeated or 'nothing'}"
        )
    return header


def _make_query(owner: Labelled, file: Path, database: Database) -> Query:
    require_file(file, "table")
    # Characters of patterns stand for themselves.
    path = quote_text(re.sub(r"[*?\[]", lambda found: f"[{found[0]}]", str(file.absolute())))
    if file.suffix == ".parquet":
        source = f"read_parquet({path}, file_row_number=true, hive_partitioning=false)"
        return Query.of_types(owner, str(file), source, database, numbered=True)
    names = _read_header(file)
    columns = ", ".join(f"c{number}: 'VARCHAR'" for number in range(len(names)))
    sql = f"FROM read_csv({path}, {_CSV_OPTIONS}, columns={{{columns}}})"
    if len(names) == 1:
        # An empty line, which would be a row of one missing value.
        sql += " WHERE c0 IS NOT NULL"
    return Query(owner, str(file), sql, names, typed=False)


def _name_owner(file: Path, taken: Mapping[Any, Any]) -> Labelled:
    """Return the node type, or the relation of node types with tables, that a file's name tells."""
    prefix, *names = file.stem.split("__")
    default = ["node"] if prefix == "nodes" else ["node", "edge", "node"]
    names = names or default
    if len(names) != len(default):
        raise GraphError(f"{file}: expected {len(default)} names after the first __, given {names}")
    names = [check_name(name, "name", str(file)) for name in names]
    if prefix == "nodes":
        if names[0] in taken:
            raise GraphError(f"{file}: node type {names[0]} has two tables")
        return names[0]
    return read_relation(names, taken, str(file), f"a table nodes__{{}}{file.suffix}")
