"""The frontiers of a subgraph, which grow from hop to hop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from hopper.micrograph.row_tables import RowTable
from hopper.micrograph.versions import Versions


class Frontiers:
    """The versions that are known at a hop, by node type, each with a row.

    Parameters
    ----------
    tables: by node type, an empty table of rows.

    Attributes
    ----------
    reached: the number of versions so far, by node type.
    """

    def __init__(self, tables: Mapping[str, RowTable]) -> None:
        self._tables = tables
        self._parts = {node_type: [np.empty(0, np.int64)] for node_type in tables}
        self.reached = dict.fromkeys(tables, 0)

    def add(self, node_type: str, versions: Versions) -> NDArray[np.int64]:
        """Add the new ones of some versions, and return [n] int64: the rows of all of them."""
        rows, new_versions = self._tables[node_type].discover(versions, self.reached[node_type])
        self._parts[node_type].append(new_versions)
        self.reached[node_type] += new_versions.size
        return rows

    def versions(self) -> dict[str, Versions]:
        """Return, by node type, [n] int64: all versions in order of their rows."""
        return {node_type: np.concatenate(parts) for node_type, parts in self._parts.items()}

    def clear_tables(self) -> None:
        """Empty the tables for the next subgraph."""
        for node_type, parts in self._parts.items():
            for versions in parts:
                self._tables[node_type].clear(versions)


class FrontierPool:
    """Makes frontiers, and uses their tables again. Several threads may do so at once."""

    def __init__(self) -> None:
        self._spare_tables: list[dict[str, RowTable]] = []
        self._lock = threading.Lock()

    @contextmanager
    def begin(
        self, node_types: Iterable[str], make_table: Callable[[str], RowTable]
    ) -> Iterator[Frontiers]:
        """Make empty frontiers. They cannot grow after the context has ended.

        Parameters
        ----------
        node_types: the same at every call.
        make_table: makes an empty table of a node type, if no spare one is left.
        """
        with self._lock:
            tables = self._spare_tables.pop() if self._spare_tables else None
        if tables is None:
            tables = {node_type: make_table(node_type) for node_type in node_types}
        frontiers = Frontiers(tables)
        try:
            yield frontiers
        finally:
            frontiers.clear_tables()
            with self._lock:
                self._spare_tables.append(tables)
