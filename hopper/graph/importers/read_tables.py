"""Read a node or an edge table in one pass over its file, in batches; of what is long, memory holds
a batch alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.encode_like import LikeTable
from hopper.graph.importers.label_columns import all_columns, find_label_columns, join_read
from hopper.graph.importers.node_ids import EdgeEnds, NodeIds
from hopper.graph.importers.spool import Spool
from hopper.graph.importers.table_columns import Splits
from hopper.graph.importers.table_file import LabelReader, NamedFeatures, TableFile
from hopper.graph.importers.workspace import Workspace
from hopper.graph.schema import Labels


@dataclass(frozen=True)
class TableContent:
    """The columns that both node and edge tables may have.

    Attributes
    ----------
    label_names: names of classes that the table does not number.
    task_names: the same by task, where there are several tasks.
    splits: rows by split; None if the table has no such column.
    """

    labels: tuple[Labels, NDArray[Any]] | None
    label_names: list[str]
    task_names: dict[str, list[str]]
    splits: Mapping[str, NDArray[np.int64]] | None
    features: NamedFeatures | None
    times: NDArray[np.int64] | None


@dataclass(frozen=True)
class NodeTable(TableContent):
    """The content of a node table."""

    ids: NodeIds

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.ids.count

    @property
    def has_ids(self) -> bool:
        """Whether all nodes have distinct ids."""
        return not self.ids.source.problems.has_failed(self.ids.source.file, "id")

    @property
    def names(self) -> Sequence[str] | None:
        """The ids by row; None if they are 0, 1, ... in order."""
        return self.ids.names


@dataclass(frozen=True)
class EdgeTable(TableContent):
    """The content of an edge table.

    Attributes
    ----------
    src, dst: [edges] int32 or int64, rows of the node tables.
    """

    src: NDArray[Any]
    dst: NDArray[Any]
    weights: NDArray[np.float32] | None


def read_node_table(
    source: TableFile, space: Workspace, like: LikeTable | None = None
) -> NodeTable:
    """Read a node table.

    What is wrong with a column becomes a problem of the table, and the column is left out.

    Parameters
    ----------
    like: the table whose encodings of features and classes are used; None = make new ones.

    Raises
    ------
    GraphError: the file is damaged, or the kind of its labels is not clear. The text names it.
    """
    columns, ids = _Columns(source, space, like, "id"), NodeIds(source, space)
    attempt, rows = source.problems.attempt, 0
    names = _find_columns(source, "id", *columns.names)
    with space.phases.phase(source.file.name, source.estimate_rows()) as progress:
        for first, batch in source.batches(names):
            column = attempt(source.file, "id", source.ids, batch, "id", first)
            if column is not None:
                ids.add(column)
            columns.read(first, batch)
            progress.advance(batch.num_rows)
            rows += batch.num_rows
    attempt(source.file, "id", ids.finish)
    ids.count = rows
    return NodeTable(**columns.finish(rows), ids=ids)


def read_edge_table(
    source: TableFile,
    sources: NodeTable | None,
    targets: NodeTable | None,
    space: Workspace,
    like: LikeTable | None = None,
) -> EdgeTable:
    """Read an edge table.

    What is wrong with a column becomes a problem of the table. A column that is wrong is left out,
    and ends become 0.

    Parameters
    ----------
    sources, targets: node tables of the source and the destination type; None = there is something
        wrong with the table, so ids are not looked for.
    like: as of :func:`read_node_table`.

    Raises
    ------
    GraphError: the file is damaged, or the kind of its labels is not clear. The text names it.
    """
    columns, ends = _Columns(source, space, like, "src", "dst", "weight"), None
    if sources is not None and targets is not None and sources.has_ids and targets.has_ids:
        ends = EdgeEnds(source, sources.ids, targets.ids, space)
    weights = Spool(space.folder, np.float32) if "weight" in source.names else None
    names = _find_columns(source, "src", "dst", *columns.names)
    names, rows = [*names, *(["weight"] if weights is not None else [])], 0
    with space.phases.phase(source.file.name, source.estimate_rows()) as progress:
        for first, batch in source.batches(names):
            if ends is not None:
                ends.add(first, batch)
            columns.read(first, batch)
            if weights is not None:
                _read_into(weights, source, "weight", source.weights, batch, first)
            progress.advance(batch.num_rows)
            rows += batch.num_rows
    src = dst = np.zeros(rows, np.int32)
    if ends is not None:
        src, dst = ends.finish()
    return EdgeTable(
        **columns.finish(rows), src=src, dst=dst, weights=_finish(weights, source, "weight")
    )


class _Columns:
    """Reads the columns that both node and edge tables may have."""

    def __init__(
        self, source: TableFile, space: Workspace, like: LikeTable | None, *taken: str
    ) -> None:
        self._source, self._attempt = source, source.problems.attempt
        self._label_columns = find_label_columns(source.names, source.where)
        labels = all_columns(self._label_columns)
        self._labels: dict[str, LabelReader] = {}
        for task, columns in self._label_columns.items():
            field = (source.file, columns[0])
            reader = (
                self._attempt(*field, source.label_reader, columns, space.folder)
                if like is None
                else self._attempt(*field, like.label_reader, source, task, columns, space.folder)
            )
            if reader is not None:
                self._labels[task] = reader
        self._splits = Splits(space.folder) if "split" in source.names else None
        self._times = Spool(space.folder, np.int64) if "time" in source.names else None
        taken = (*taken, "time", "split", *labels)
        features = [name for name in source.names if name not in taken]
        self._features = (
            source.feature_reader(features)
            if like is None
            else like.feature_reader(source, features)
        )
        present = [name for name in ("time", "split") if name in source.names]
        self.names = (*present, *labels, *self._features.columns)

    def read(self, first: int, batch: Any) -> None:
        """Read a batch whose first row is ``first``."""
        if self._splits is not None:
            self._splits.read(first, batch.column("split"))
        if self._times is not None:
            _read_into(self._times, self._source, "time", self._source.times, batch, first)
        for task, reader in self._labels.items():
            self._attempt(
                self._source.file, self._label_columns[task][0], reader.read, first, batch
            )
        self._features.read(first, batch)

    def finish(self, rows: int) -> dict[str, Any]:
        """Return the fields of :class:`TableContent`."""
        file, by_task = self._source.file, {}
        for task, reader in self._labels.items():
            read = self._attempt(file, self._label_columns[task][0], reader.finish)
            if read is not None:
                by_task[task] = read
        joined = self._attempt(file, "labels", join_read, by_task, f"{file}: labels")
        (labels, label_names), task_names = joined or ((None, []), {})
        return {
            "labels": labels,
            "label_names": label_names,
            "task_names": task_names,
            "splits": None if self._splits is None else self._splits.finish(),
            "features": self._features.finish(rows),
            "times": _finish(self._times, self._source, "time"),
        }


def _read_into(
    spool: Spool,
    source: TableFile,
    column: str,
    read: Callable[[Any, int], NDArray[Any]],
    batch: Any,
    first: int,
) -> None:
    """Read a batch of a column into a spool, unless the column is wrong."""
    values = source.problems.attempt(source.file, column, read, batch, first)
    if values is not None:
        spool.append(values)


def _finish(spool: Spool | None, source: TableFile, column: str) -> NDArray[Any] | None:
    """Return all of a column; None if there is none, or if it is wrong."""
    if spool is None or source.problems.has_failed(source.file, column):
        return None
    return spool.finish()


def _find_columns(source: TableFile, *columns: str) -> list[str]:
    """Return the columns that the table has; each that it lacks is a problem."""
    for column in columns:
        source.problems.attempt(source.file, column, _require, source, column)
    return [column for column in columns if column in source.names]


def _require(source: TableFile, column: str) -> None:
    if column not in source.names:
        raise GraphError(
            f"{source.where}: column {column}: expected, but missing in {list(source.names)}"
        )
