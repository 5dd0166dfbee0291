"""Features from a place of one's own: a table of an SQLite database. See docs/plug-ins.md.

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
    """Rows that lie as float32 in ``rows(id INTEGER PRIMARY KEY, row BLOB)``, by original id.

    Parameters
    ----------
    node_type, count, server: given by Hopper; a database may hold the nodes of one server alone.
    path: of the database; "{server}" in it becomes the server's number.
    dim: numbers in a row.
    """

    dtype = "float32"

    def __init__(self, *, node_type: str, count: int, server: int, path: str, dim: int) -> None:
        self.dim = dim
        file = Path(path.replace("{server}", str(server))).resolve(strict=True)
        # Other threads read later on, one at a time.
        self._database = sqlite3.connect(
            f"{file.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
        )

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """[n, dim] float32: the rows of [n] ids, each looked up once."""
        distinct, places = np.unique(ids, return_inverse=True)
        rows = np.empty((distinct.size, self.dim), np.float32)
        for first in range(0, distinct.size, _AT_ONCE):
            wanted = distinct[first : first + _AT_ONCE].tolist()
            marks = ",".join("?" * len(wanted))
            query = f"SELECT id, row FROM rows WHERE id IN ({marks}) ORDER BY id"
            found = self._database.execute(query, wanted).fetchall()
            if len(found) != len(wanted):
                missing = sorted(set(wanted) - {each for each, _ in found})
                raise KeyError(f"no row of id {missing[0]}")
            for place, (_, row) in enumerate(found, first):
                rows[place] = np.frombuffer(row, "<f4")
        return rows[places]


def write_rows(path: Path, rows: Iterable[tuple[int, NDArray[Any]]]) -> None:
    """Write a database of (original id, row) pairs."""
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE rows(id INTEGER PRIMARY KEY, row BLOB)")
        database.executemany(
            "INSERT INTO rows VALUES (?, ?)",
            ((int(each), np.asarray(row, "<f4").tobytes()) for each, row in rows),
        )
    database.close()
