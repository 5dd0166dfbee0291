"""Join and sort tables within a limit of memory.

DuckDB does it, on disk if memory does not suffice
(https://duckdb.org/docs/stable/guides/performance/how_to_tune_workloads).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.array_file import iter_pieces
from hopper.graph.importers.source_files import first_line

_BATCH: Final = 1 << 19
"""Rows that pass between the engine and this process at once."""

_PER_THREAD: Final = 128 << 20
"""Bytes of memory that each of the engine's threads should have."""


class TableEngine:
    """Joins and sorts tables within a limit of memory.

    Parameters
    ----------
    folder: takes data that memory does not hold; the caller removes it.
    memory: the limit in bytes.

    Raises
    ------
    GraphError: its files cannot be written.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        import duckdb

        self._errors = duckdb.Error
        # A database in a file frees memory that tables in memory would keep.
        threads = max(1, min(os.cpu_count() or 1, memory // _PER_THREAD))
        with self._explain_errors("import of tables"):
            self._database = duckdb.connect(
                str(folder / "tables.duckdb"),
                config={
                    "threads": threads,
                    "memory_limit": f"{memory >> 10}KiB",
                    "temp_directory": str(folder / "engine"),
                    "preserve_insertion_order": False,
                },
            )
        self._tables: set[str] = set()

    def close(self) -> None:
        """Close the engine's files."""
        self._database.close()

    def bound_memory(self, memory: int) -> None:
        """Change the limit of memory to so many bytes."""
        self._execute(f"SET memory_limit = '{memory >> 10}KiB'")

    def add(self, table: str, batch: Any) -> None:
        """Add rows, a pyarrow table or batch, to a table; the first rows create it."""
        with self._explain_errors(table):
            self._database.register("batch", batch)
            name = _quote(table)
            if table in self._tables:
                self._execute(f"INSERT INTO {name} SELECT * FROM batch")  # noqa: S608 # quoted
            else:
                self._execute(f"CREATE TABLE {name} AS SELECT * FROM batch")  # noqa: S608 # quoted
                self._tables.add(table)
            self._database.unregister("batch")

    def drop(self, table: str) -> None:
        """Remove a table."""
        self._execute(f"DROP TABLE {_quote(table)}")
        self._tables.discard(table)

    def find_repeated(self, table: str) -> int | None:
        """Return the first row of a table (``row``, ``id``) whose id an earlier row has."""
        name = _quote(table)
        with self._explain_errors(table):
            first = f"min(row) OVER (PARTITION BY id) AS first FROM {name}"
            repeated = f"SELECT id FROM {name} GROUP BY id HAVING count(*) > 1"  # noqa: S608 # quoted
            ranked = f"SELECT row, {first} WHERE id IN ({repeated})"
            least = f"SELECT min(row) FROM ({ranked}) WHERE row > first"  # noqa: S608 # quoted
            result = self._execute(least)
        return None if result[0][0] is None else int(result[0][0])

    def find_rows(
        self, edges: str, ends: dict[str, str | None]
    ) -> Iterator[dict[str, NDArray[np.int64]]]:
        """Find the rows of node tables that edges name, in order of the edges; -1 = unknown id.

        Parameters
        ----------
        edges: a table with the columns ``edge`` and one for each end.
        ends: the node table (``row``, ``id``) of each end; None if its column has rows already.
        """
        columns, joins = [], []
        for number, (end, nodes) in enumerate(ends.items()):
            if nodes is None:
                columns.append(f"e.{_quote(end)}")
                continue
            columns.append(f"coalesce(n{number}.row, -1) AS {_quote(end)}")
            joins.append(f"LEFT JOIN {_quote(nodes)} n{number} ON e.{_quote(end)} = n{number}.id")
        source = f"{_quote(edges)} e {' '.join(joins)} ORDER BY e.edge"
        query = f"SELECT {', '.join(columns)} FROM {source}"  # noqa: S608 # quoted
        with self._explain_errors(edges):
            for batch in self._database.sql(query).to_arrow_reader(_BATCH):
                yield {end: batch.column(end).to_numpy() for end in ends}

    def sort_edges(
        self, src: NDArray[Any], dst: NDArray[Any], where: str
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]]:
        """Sort edges by destination, source and id; yield these three arrays a batch at a time.

        Parameters
        ----------
        src, dst: [edges] of one dtype, in order of id.
        where: what the edges are, for errors.
        """
        import pyarrow

        kinds = [pyarrow.from_numpy_dtype(ids.dtype) for ids in (src, dst)]
        schema = pyarrow.schema([("src", kinds[0]), ("dst", kinds[1]), ("edge", pyarrow.int64())])

        def rows() -> Iterator[Any]:
            for (first, sources), (_, targets) in zip(
                iter_pieces(src, _BATCH), iter_pieces(dst, _BATCH), strict=True
            ):
                ids = np.arange(first, first + len(sources))
                # The engine may read the arrays after their pages were given back, so copy them.
                arrays = [pyarrow.array(np.array(array)) for array in (sources, targets, ids)]
                yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

        edges = pyarrow.RecordBatchReader.from_batches(schema, rows())
        with self._explain_errors(where):
            self._database.register("edges_to_sort", edges)
            query = "SELECT src, dst, edge FROM edges_to_sort ORDER BY dst, src, edge"
            for batch in self._database.sql(query).to_arrow_reader(_BATCH):
                yield tuple(batch.column(name).to_numpy() for name in ("src", "dst", "edge"))
            self._database.unregister("edges_to_sort")

    def _execute(self, query: str) -> list[tuple[Any, ...]]:
        # The connection is in use until the result is fetched, even an empty one.
        return list(self._database.execute(query).fetchall())

    @contextmanager
    def _explain_errors(self, what: str) -> Iterator[None]:
        """Raise the engine's errors as errors of Hopper that say what failed."""
        try:
            yield
        except self._errors as error:
            if "Out of Memory" in str(error):
                raise RequestError(
                    f"{what}: --memory-limit: too little to join and sort: {first_line(error)}"
                ) from error
            raise GraphError(f"{what}: {first_line(error)}") from error


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
