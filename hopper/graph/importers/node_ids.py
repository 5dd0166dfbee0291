"""Number the nodes of node tables, and find the numbers of edges' ends by a join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.graph.importers.spool import Spool, TextSpool
from hopper.graph.importers.table_file import TableFile, is_text
from hopper.graph.importers.workspace import Workspace

_End = Literal["src", "dst"]
_INT32: Final = 2**31
"""Number of nodes from which ends of edges take 8 bytes."""


class NodeIds:
    """The ids of a node table, added in batches.

    As long as the ids are 0, 1, 2, ... they are only counted. Other ids go into a table of the
    engine, and their texts into names.
    """

    def __init__(self, source: TableFile, space: Workspace) -> None:
        self.source, self.count = source, 0
        self.table: str | None = None
        """the engine's table of the ids; None = each id is the number of its row"""
        self.type: Any = None
        """the ids' pyarrow type"""
        self._space, self._names = space, TextSpool(space.folder)
        self.names: Sequence[str] | None = None

    def add(self, column: Any) -> None:
        """Add ids, a pyarrow array without nulls."""
        import pyarrow

        rows = pyarrow.array(np.arange(self.count, self.count + len(column)))
        self.type = column.type
        if self.table is None and not are_rows(column, self.source.texts_count, self.count):
            self.table = f"ids of {self.source.file.name}"
            for start in range(0, self.count, len(column)):
                earlier = pyarrow.array(np.arange(start, min(start + len(column), self.count)))
                self._store(earlier, earlier.cast(column.type))
        self.count += len(column)
        if self.table is not None:
            self._store(rows, column)

    def finish(self) -> None:
        """Check that the ids are distinct.

        Raises
        ------
        GraphError: an id is repeated. The text names file, column, and line or row.
        """
        if self.table is None:
            return
        row = self._space.engine.find_repeated(self.table)
        if row is not None:
            raise self.source.refuse_repeated(row)
        self.names = self._names.finish()

    def _store(self, rows: Any, column: Any) -> None:
        import pyarrow

        assert self.table is not None
        self._space.engine.add(self.table, pyarrow.table({"row": rows, "id": column}))
        if is_text(column.type) or pyarrow.types.is_integer(column.type):
            self._names.append(column.cast(pyarrow.large_string()))
        else:
            self._names.append(pyarrow.array([str(value) for value in column.to_pylist()]))


class EdgeEnds:
    """The ends of a table's edges, added in batches as ids and converted to numbers of rows."""

    def __init__(
        self, source: TableFile, sources: NodeIds, targets: NodeIds, space: Workspace
    ) -> None:
        self._source, self._space = source, space
        self._nodes: dict[_End, NodeIds] = {"src": sources, "dst": targets}
        self._found = {
            end: Spool(space.folder, np.int32 if nodes.count < _INT32 else np.int64)
            for end, nodes in self._nodes.items()
        }
        self._table = f"edges of {source.file.name}"
        self._joins = any(nodes.table is not None for nodes in self._nodes.values())
        self._count = 0

    def add(self, first: int, batch: Any) -> None:
        """Add the columns ``src`` and ``dst`` of a batch whose first row is ``first``.

        An id that has another type than those of the node table, or is not there, is a problem of
        the edge table.
        """
        import pyarrow

        columns: dict[str, Any] = {}
        for end in self._nodes:
            columns[end] = self._attempt(end, self._convert, batch, end, first)
        self._count += batch.num_rows
        if self._has_failed():
            return
        if self._joins:
            edges = pyarrow.array(np.arange(first, first + batch.num_rows))
            self._space.engine.add(self._table, pyarrow.table({"edge": edges, **columns}))
            return
        for end, spool in self._found.items():
            spool.append(columns[end])

    def finish(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the rows of both ends, [edges] each, in order of the edges; 0 if any is wrong."""
        if self._joins and self._count and not self._has_failed():
            self._join()
        if self._has_failed():
            return np.zeros(self._count, np.int32), np.zeros(self._count, np.int32)
        return self._found["src"].finish(), self._found["dst"].finish()

    def _join(self) -> None:
        tables: dict[str, str | None] = {end: nodes.table for end, nodes in self._nodes.items()}
        phase = f"{self._source.file.name}: ids to numbers"
        first = 0
        with self._space.phases.phase(phase, self._count) as progress:
            for rows in self._space.engine.find_rows(self._table, tables):
                for end in self._found:
                    self._attempt(end, self._keep, end, rows[end], first)
                first += len(rows["src"])
                progress.advance(len(rows["src"]))
        self._space.engine.drop(self._table)

    def _attempt(self, end: _End, step: Callable[..., Any], *arguments: Any) -> Any:
        """Take a step of one end; what is wrong with it is a problem of the edge table."""
        return self._source.problems.attempt(self._source.file, end, step, *arguments)

    def _has_failed(self) -> bool:
        """Return whether a step of either end has failed."""
        return any(self._source.problems.has_failed(self._source.file, end) for end in self._nodes)

    def _keep(self, end: _End, rows: NDArray[np.int64], first: int) -> None:
        """Keep the rows of an end, of edges from ``first`` on; -1 is refused."""
        missing = np.flatnonzero(rows < 0)
        if missing.size:
            raise self._source.refuse_unknown(first + int(missing[0]), end)
        self._found[end].append(rows)

    def _convert(self, batch: Any, end: _End, first: int) -> Any:
        """Convert a column to ids of the node table's type, or to rows where ids are rows."""
        nodes, column = self._nodes[end], self._source.ids(batch, end, first)
        if nodes.type is not None:
            column = self._source.match_type(column, nodes.type, end, first)
        return column if nodes.table is not None else self._as_rows(column, end, first)

    def _as_rows(self, column: Any, end: _End, first: int) -> NDArray[np.int64]:
        """Convert ids that are numbers of rows, and check that the rows exist."""
        count = self._nodes[end].count
        rows = as_integers(column)
        wrong = np.flatnonzero((rows < 0) | (rows >= count))
        if wrong.size:
            raise self._source.refuse_unknown(first + int(wrong[0]), end)
        return rows


def are_rows(column: Any, texts_count: bool, first: int = 0) -> bool:
    """Return whether ids are the numbers of their rows.

    Parameters
    ----------
    texts_count: whether a text that is written as a number counts as one.
    first: row of the first id.
    """
    import pyarrow
    from pyarrow import compute

    rows = np.arange(first, first + len(column))
    if pyarrow.types.is_integer(column.type):
        return bool(np.array_equal(column.to_numpy(), rows))
    if not texts_count:
        return False
    same = compute.equal(column, pyarrow.array(rows).cast(column.type))
    return bool(compute.all(same, min_count=0).as_py())


def as_integers(column: Any) -> NDArray[np.int64]:
    """Convert ids to integers: [n] int64; -1 for a text that is not an integer in usual form."""
    import pyarrow
    from pyarrow import compute

    if pyarrow.types.is_integer(column.type):
        return np.asarray(column.to_numpy(), np.int64)
    try:
        numbers = column.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        texts = column.to_pylist()
        parsed = [int(t) if t.isascii() and t.isdecimal() and len(t) < 19 else -1 for t in texts]
        numbers = pyarrow.array(parsed, pyarrow.int64())
    same = compute.equal(numbers.cast(column.type), column)
    return np.asarray(compute.if_else(same, numbers, -1).to_numpy(zero_copy_only=False), np.int64)
