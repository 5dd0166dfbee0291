"""Joins and sorts that need no more memory than they are given: DuckDB does them, on disk where
they are larger (https://duckdb.org/docs/stable/guides/performance/how_to_tune_workloads)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.array_file import blocks
from hopper.graph.importers.source_files import first_line

_BATCH: Final = 1 << 19
"""rows that pass between the engine and this process at once"""

_PER_THREAD: Final = 128 << 20
"""bytes that each of the engine's threads should have"""


class TableEngine:
    """Tables of columns, joined and sorted under a bound of memory.

    Parameters
    ----------
    folder: where it keeps what does not fit; its owner removes it.
    memory: bytes.

    Raises
    ------
    RequestError: DuckDB is missing.
    GraphError: its files cannot be written.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise RequestError(
                f"import of tables: duckdb cannot be imported ({error}); install it with: pip "
                "install 'hopper-gnn[tables]'"
            ) from error
        self._errors = duckdb.Error
        # A database in a file gives back what tables in memory would keep.
        threads = max(1, min(os.cpu_count() or 1, memory // _PER_THREAD))
        with self._explained("import of tables"):
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
        """Let its files go."""
        self._database.close()

    def bound_memory(self, memory: int) -> None:
        """Give it so many bytes from now on."""
        self._execute(f"SET memory_limit = '{memory >> 10}KiB'")

    def add(self, table: str, batch: Any) -> None:
        """Add rows, a pyarrow table or batch, to a table, which begins with its first rows."""
        with self._explained(table):
            self._database.register("batch", batch)
            name = _quoted(table)
            if table in self._tables:
                self._execute(f"INSERT INTO {name} SELECT * FROM batch")  # nosec B608 # quoted
            else:
                self._execute(f"CREATE TABLE {name} AS SELECT * FROM batch")  # nosec B608 # quoted
                self._tables.add(table)
            self._database.unregister("batch")

    def drop(self, table: str) -> None:
        """Forget a table."""
        self._execute(f"DROP TABLE {_quoted(table)}")
        self._tables.discard(table)

    def find_repeated(self, table: str) -> int | None:
        """The first row of a table (``row``, ``id``) whose id an earlier row has."""
        name = _quoted(table)
        with self._explained(table):
            first = f"min(row) OVER (PARTITION BY id) AS first FROM {name}"
            repeated = f"SELECT id FROM {name} GROUP BY id HAVING count(*) > 1"  # nosec B608 # quoted
            ranked = f"SELECT row, {first} WHERE id IN ({repeated})"
            least = f"SELECT min(row) FROM ({ranked}) WHERE row > first"  # nosec B608 # quoted
            found = self._execute(least)
        return None if found[0][0] is None else int(found[0][0])

    def find_rows(
        self, edges: str, ends: dict[str, str | None]
    ) -> Iterator[dict[str, NDArray[np.int64]]]:
        """Rows of node tables that the ends of edges name, in order of the edges; -1 = none.

        Parameters
        ----------
        edges: a table with ``edge`` and the ends.
        ends: by end, the table (``row``, ``id``) of its nodes; None where it has rows already.
        """
        columns, joins = [], []
        for number, (end, nodes) in enumerate(ends.items()):
            if nodes is None:
                columns.append(f"e.{_quoted(end)}")
                continue
            columns.append(f"coalesce(n{number}.row, -1) AS {_quoted(end)}")
            joins.append(f"LEFT JOIN {_quoted(nodes)} n{number} ON e.{_quoted(end)} = n{number}.id")
        source = f"{_quoted(edges)} e {' '.join(joins)} ORDER BY e.edge"
        query = f"SELECT {', '.join(columns)} FROM {source}"  # nosec B608 # quoted
        with self._explained(edges):
            for batch in self._database.sql(query).to_arrow_reader(_BATCH):
                yield {end: batch.column(end).to_numpy() for end in ends}

    def sort_edges(
        self, src: NDArray[Any], dst: NDArray[Any], where: str
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]]:
        """Sources, destinations and ids of edges, ordered by destination, source and id.

        Parameters
        ----------
        src, dst: [edges] of one dtype, in order of id.
        """
        import pyarrow

        kinds = [pyarrow.from_numpy_dtype(each.dtype) for each in (src, dst)]
        schema = pyarrow.schema([("src", kinds[0]), ("dst", kinds[1]), ("edge", pyarrow.int64())])

        def rows() -> Iterator[Any]:
            for (first, sources), (_, targets) in zip(
                blocks(src, _BATCH), blocks(dst, _BATCH), strict=True
            ):
                ids = np.arange(first, first + len(sources))
                # Copied: the engine may read them after their pages were given back.
                arrays = [pyarrow.array(np.array(each)) for each in (sources, targets, ids)]
                yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

        edges = pyarrow.RecordBatchReader.from_batches(schema, rows())
        with self._explained(where):
            self._database.register("edges_to_sort", edges)
            query = "SELECT src, dst, edge FROM edges_to_sort ORDER BY dst, src, edge"
            for batch in self._database.sql(query).to_arrow_reader(_BATCH):
                yield tuple(batch.column(name).to_numpy() for name in ("src", "dst", "edge"))
            self._database.unregister("edges_to_sort")

    def _execute(self, query: str) -> list[tuple[Any, ...]]:
        # Fetched also where nothing comes: until then the connection is in use.
        return list(self._database.execute(query).fetchall())

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            if "Out of Memory" in str(error):
                raise RequestError(
                    f"{what}: --memory-limit: too little to join and sort: {first_line(error)}"
                ) from error
            raise GraphError(f"{what}: {first_line(error)}") from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
