"""Read a node or an edge table in one pass over its file, in batches; of what is long, memory holds
a batch alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from hopper.graph.importers.table_file import NamedFeatures, TableFile
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

    Parameters
    ----------
    like: the table whose encodings of features and classes are used; None = make new ones.

    Raises
    ------
    GraphError: a value is wrong. The text names file, column, and line or row.
    """
    _require(source, "id")
    columns, ids = _Columns(source, space, like, "id"), NodeIds(source, space)
    with space.phases.phase(source.file.name, source.estimate_rows()) as progress:
        for first, batch in source.batches(("id", *columns.names)):
            ids.add(source.ids(batch, "id", first))
            columns.read(first, batch)
            progress.advance(batch.num_rows)
    ids.finish()
    return NodeTable(**columns.finish(ids.count), ids=ids)


def read_edge_table(
    source: TableFile,
    sources: NodeTable,
    targets: NodeTable,
    space: Workspace,
    like: LikeTable | None = None,
) -> EdgeTable:
    """Read an edge table.

    Parameters
    ----------
    sources, targets: node tables of the source and the destination type.
    like: as of :func:`read_node_table`.

    Raises
    ------
    GraphError: a value is wrong. The text names file, column, and line or row.
    """
    _require(source, "src", "dst")
    columns = _Columns(source, space, like, "src", "dst", "weight")
    ends = EdgeEnds(source, sources.ids, targets.ids, space)
    weights = Spool(space.folder, np.float32) if "weight" in source.names else None
    names = ["src", "dst", *columns.names, *(["weight"] if weights is not None else [])]
    with space.phases.phase(source.file.name, source.estimate_rows()) as progress:
        for first, batch in source.batches(names):
            ends.add(first, batch)
            columns.read(first, batch)
            if weights is not None:
                weights.append(source.weights(batch, first))
            progress.advance(batch.num_rows)
    src, dst = ends.finish()
    all_weights = None if weights is None else weights.finish()
    return EdgeTable(**columns.finish(src.size), src=src, dst=dst, weights=all_weights)


class _Columns:
    """Reads the columns that both node and edge tables may have."""

    def __init__(
        self, source: TableFile, space: Workspace, like: LikeTable | None, *taken: str
    ) -> None:
        self._source = source
        self._label_columns = find_label_columns(source.names, source.where)
        labels = all_columns(self._label_columns)
        self._labels = {
            task: source.label_reader(columns, space.folder)
            if like is None
            else like.label_reader(source, task, columns, space.folder)
            for task, columns in self._label_columns.items()
        }
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
            self._times.append(self._source.times(batch, first))
        for reader in self._labels.values():
            reader.read(first, batch)
        self._features.read(first, batch)

    def finish(self, rows: int) -> dict[str, Any]:
        """Return the fields of :class:`TableContent`."""
        by_task = {task: reader.finish() for task, reader in self._labels.items()}
        (labels, label_names), task_names = join_read(by_task, f"{self._source.file}: labels")
        return {
            "labels": labels,
            "label_names": label_names,
            "task_names": task_names,
            "splits": None if self._splits is None else self._splits.finish(),
            "features": self._features.finish(rows),
            "times": None if self._times is None else self._times.finish(),
        }


def _require(source: TableFile, *columns: str) -> None:
    for column in columns:
        if column not in source.names:
            raise GraphError(
                f"{source.where}: column {column}: expected, but missing in {list(source.names)}"
            )
