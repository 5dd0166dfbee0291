"""A user-defined source of features: a table of an SQLite database. See docs/howto/plug-ins.md.

[data]
features = {paper = "sqlite_features:SqliteFeatures"}
features_options = {paper = {path = "/data/papers.db", dim = 128}}
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_AT_ONCE: Final = 500


class SqliteFeatures:
    """Reads float32 rows by original id from ``rows(id INTEGER PRIMARY KEY, row BLOB)``.

    Parameters
    ----------
    node_type, count, server: given by Hopper. A database may have only the nodes of one server.
    path: file of the database; "{server}" in it becomes the server's number.
    dim: width of a row.
    """

    dtype = "float32"

    def __init__(self, *, node_type: str, count: int, server: int, path: str, dim: int) -> None:
        self.dim = dim
        file = Path(path.replace("{server}", str(server))).resolve(strict=True)
        # Other threads will read, one at a time.
        self._database = sqlite3.connect(
            f"{file.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
        )

    def __del__(self) -> None:
        if hasattr(self, "_database"):
            self._database.close()

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """[n, dim] float32: the rows of [n] ids, each looked up once."""
        distinct, places = np.unique(ids, return_inverse=True)
        rows = np.empty((distinct.size, self.dim), np.float32)
        for first in range(0, distinct.size, _AT_ONCE):
            wanted = distinct[first : first + _AT_ONCE].tolist()
            marks = ",".join("?" * len(wanted))
            query = f"SELECT id, row FROM rows WHERE id IN ({marks}) ORDER BY id"
            results = self._database.execute(query, wanted).fetchall()
            if len(results) != len(wanted):
                missing = sorted(set(wanted) - {row_id for row_id, _ in results})
                raise KeyError(f"no row of id {missing[0]}")
            for index, (_, row) in enumerate(results, first):
                rows[index] = np.frombuffer(row, "<f4")
        return rows[places]


def write_rows(path: Path, rows: Iterable[tuple[int, NDArray[Any]]]) -> None:
    """Write a database of (original id, row) pairs."""
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE rows(id INTEGER PRIMARY KEY, row BLOB)")
        database.executemany(
            "INSERT INTO rows VALUES (?, ?)",
            ((int(row_id), np.asarray(row, "<f4").tobytes()) for row_id, row in rows),
        )
    database.close()
