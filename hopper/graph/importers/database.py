"""Run queries over tables in DuckDB, within a limit of memory, and connect to other databases.

DuckDB spills to disk what memory does not hold
(https://duckdb.org/docs/stable/guides/performance/how_to_tune_workloads).
Other databases have ADBC drivers, which stream results as Arrow batches.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

from cache_server.available_memory import available_memory
from hopper.errors import GraphError, RequestError, cannot_import
from hopper.graph.array_file import iter_pieces, name_in_errors
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.layout import id_dtype
from hopper.graph.publish import folder_beside
from hopper.timing.phases import Phases

_BATCH: Final = 1 << 19
"""Rows that pass between the database and this process at once."""
_BLOCKS: Final = 320 << 20
"""Bytes for batches of tables and pieces of arrays that pass through."""
_OVER: Final = 0.8
"""Share of the remaining memory that the database gets, because it exceeds its limit at times."""
_LEAST: Final = 128 << 20
"""Fewest bytes that the database works with, and that each of its threads should have."""
_IN_MEMORY: Final = 1 << 20
"""Bytes that an array may have before it gets a file."""
_DRIVERS: Final = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}


class DatabaseError(GraphError):
    """The database could not run a query, for example because a file is damaged."""


class Database:
    """Runs queries, and makes arrays of what they return."""

    def __init__(self, folder: Path, limit: int, memory: int, phases: Phases | None = None) -> None:
        import duckdb

        self._errors, self._numbers = duckdb.Error, count()
        self.folder, self.limit, self.memory = folder, limit, memory
        self.phases = phases or Phases()
        threads = max(1, min(os.cpu_count() or 1, int(memory * _OVER) // _LEAST))
        with self.explain_errors("import of tables"):
            # A database in a file frees memory that tables in memory would keep.
            self.connection: Any = duckdb.connect(
                str(folder / "tables.duckdb"),
                config={"threads": threads, "temp_directory": str(folder / "engine")},
            )
            self._bound_memory(memory)
            # Numbers of rows are their order in the source.
            self.fetch("SET GLOBAL preserve_insertion_order = true")
            self.fetch("SET GLOBAL TimeZone = 'UTC'")
            # Otherwise it would hold a column of a whole group of rows.
            self.fetch("SET GLOBAL disable_parquet_prefetching = true")
            # Compression takes longer than reading a table.
            self.fetch("SET GLOBAL force_compression = 'uncompressed'")

    def close(self) -> None:
        """Close the database's files."""
        self.connection.close()

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query, and return its few rows."""
        # The connection is in use until the result is fetched, even an empty one.
        return list(self.connection.execute(query).fetchall())

    def check_select(self, sql: str) -> str:
        """Check that a text is one SELECT that can be run, and return it without the semicolon."""
        import duckdb

        statements = self.connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
            raise GraphError(f"expected one SELECT, given {kinds}")
        query: str = statements[0].query.rstrip().removesuffix(";")
        self.fetch(f"DESCRIBE {query}")
        return query

    def copy(self, name: str, table: object, numeric: Collection[str] = ()) -> None:
        """Copy what DuckDB can read, such as a pandas table or an Arrow reader, into a table; the
        texts of the columns ``numeric`` become numbers."""
        self.connection.register("copied", table)
        try:
            numbers = ", ".join(f'"{column}"::DOUBLE AS "{column}"' for column in numeric)
            columns = f"* REPLACE ({numbers})" if numbers else "*"
            self.fetch(f'CREATE TABLE "{name}" AS SELECT {columns} FROM copied')  # noqa: S608
        finally:
            self.connection.unregister("copied")

    def new_name(self, prefix: str) -> str:
        """Return a name for a table or a type that nothing has yet."""
        return f"{prefix}{next(self._numbers)}"

    def scan(self, query: str, rows: int | None = None) -> Iterator[tuple[int, Any]]:
        """Run a query, and iterate over its rows in pairs of a first row and a pyarrow batch."""
        first = 0
        # A cursor of its own lets other queries run meanwhile.
        cursor = self.connection.cursor()
        for batch in cursor.sql(query).to_arrow_reader(min(rows or _BATCH, _BATCH)):
            yield first, batch
            first += batch.num_rows

    def array(self, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Make an array of zeros: in memory up to 1 MiB, else in a file without a name."""
        nbytes = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object))
        if nbytes <= _IN_MEMORY:
            return np.zeros(shape, dtype)
        with name_in_errors(self.folder), tempfile.TemporaryFile(dir=self.folder) as file:
            # A hole that the disk cannot fill later would kill the process.
            os.posix_fallocate(file.fileno(), 0, nbytes)
            return np.asarray(np.memmap(file, dtype, "r+", shape=shape))

    def sort_edges(
        self, src: NDArray[Any], dst: NDArray[Any], where: str
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Sort edges by destination, source and id; yield these three arrays a batch at a time."""
        import pyarrow

        # Narrow ids take an eighth of the time less to sort.
        dtypes = [src.dtype, dst.dtype, id_dtype(src.size)]
        kinds = map(pyarrow.from_numpy_dtype, dtypes)
        schema = pyarrow.schema(list(zip(("src", "dst", "edge"), kinds, strict=True)))

        def rows() -> Iterator[Any]:
            for (first, sources), (_, targets) in zip(
                iter_pieces(src, _BATCH), iter_pieces(dst, _BATCH), strict=True
            ):
                ids = np.arange(first, first + len(sources), dtype=dtypes[2])
                # It may read the arrays after their pages were given back, so copy them.
                arrays = [pyarrow.array(np.array(array)) for array in (sources, targets, ids)]
                yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

        with self.explain_errors(where):
            cursor = self.connection.cursor()
            cursor.register("edges", pyarrow.RecordBatchReader.from_batches(schema, rows()))
            query = "SELECT dst, src, edge FROM edges ORDER BY dst, src, edge"
            for batch in cursor.sql(query).to_arrow_reader(_BATCH):
                yield tuple(batch.column(name).to_numpy() for name in ("src", "dst", "edge"))

    def require(self, nbytes: int, what: str) -> None:
        """Check that memory suffices for whole arrays."""
        if nbytes > self.memory:
            raise RequestError(
                f"{what}: needs about {nbytes / 2**30:.2f} GiB of memory, of which --memory-limit "
                f"leaves {self.memory / 2**30:.2f} GiB"
            )

    @contextmanager
    def reserve(self, nbytes: int, what: str) -> Iterator[None]:
        """Take memory from the database within a ``with`` block."""
        self.require(nbytes + int(_LEAST / _OVER), what)
        self.release()
        self._bound_memory(self.memory - nbytes)
        try:
            yield
        finally:
            self._bound_memory(self.memory)

    def release(self) -> None:
        """Give back the memory of what was read of tables, which are on disk."""
        # A lower limit for a moment evicts it. It would stay as long as the limit has room for it.
        with suppress(self._errors):
            self._bound_memory(min(int(_LEAST / _OVER), self.memory))
        self._bound_memory(self.memory)

    def _bound_memory(self, nbytes: int) -> None:
        self.fetch(f"SET memory_limit = '{int(nbytes * _OVER) >> 10}KiB'")

    @contextmanager
    def explain_errors(self, what: str) -> Iterator[None]:
        """Raise the database's errors as errors of Hopper that say what failed."""
        import pyarrow

        try:
            yield
        except (self._errors, pyarrow.ArrowException, OSError) as error:
            # What pyarrow raises has no number of the system.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if "Out of Memory" in str(error):
                raise RequestError(
                    f"{what}: --memory-limit: too little to join and sort: {first_line(error)}"
                ) from error
            raise DatabaseError(f"{what}: {first_line(error)}") from error


@contextmanager
def open_database(
    out: Path, limit: int | None = None, phases: Phases | None = None
) -> Iterator[Database]:
    """Open a database beside ``out``, and remove it at the end; ``limit`` is the bytes that the
    process may take, None = half of the available memory."""
    reserved = int(psutil.Process().memory_info().rss) + _BLOCKS
    least = int(_LEAST / _OVER) + reserved
    bound = max(available_memory() // 2, least) if limit is None else limit
    if bound < least:
        raise RequestError(
            f"--memory-limit: expected at least {least / 2**20:.0f}M, given {bound / 2**20:.0f}M"
        )
    with (
        folder_beside(out) as folder,
        closing(Database(folder, bound, bound - reserved, phases)) as database,
    ):
        yield database


def open_database_of(url: str, folder: Path) -> Any:
    """Connect to ``postgresql://...`` or ``sqlite:PATH``, and return a connection of DB-API 2.

    A relative path begins in ``folder``. A GraphError tells that the address has another form, a
    RequestError that the driver is not installed.
    """
    kind, _, rest = url.partition(":")
    if kind not in _DRIVERS:
        raise GraphError(f"expected duckdb:PATH, sqlite:PATH or postgresql://..., given {url!r}")
    package = f"adbc_driver_{_DRIVERS[kind]}"
    try:
        driver = import_module(f"{package}.dbapi")
    except ImportError as error:
        text = cannot_import(f"a {kind} database", package.replace("_", "-"), error)
        raise RequestError(text) from error
    if kind == "sqlite":
        require_file(folder / rest, "database")
        # Without a mode, a file that is not there would be made.
        url = f"file:{quote(str((folder / rest).absolute()))}?mode=ro"
    return driver.connect(url)


def find_numeric(schema: Any) -> list[str]:
    """Return the columns of an Arrow schema that are NUMERIC in Postgres, which come as texts."""
    return [field.name for field in schema if getattr(field.type, "type_name", "") == "numeric"]
