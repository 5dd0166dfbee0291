"""What an importer reads from a source, before it becomes a graph directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.layout import check_name, safe_name
from hopper.graph.schema import Labelled, Labels, Relation

CHUNK_BYTES = 64 << 20
_MOST_CLASSES = 1 << 24
"""of a task among several, whose classes are kept in float32"""


class FeatureTable(Protocol):
    """Features that can be read from first to last row in chunks of bounded size."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the chunks."""

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Pairs of a first row and the rows [n, columns] from there on; together all rows."""


@dataclass(frozen=True)
class ArrayFeatures:
    """Features in an array (perhaps a memory map) or in a SciPy CSR matrix."""

    array: Any
    """[rows, columns]: a numpy array or anything sliced by rows that has ``toarray()``"""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.array.shape
        return int(rows), int(columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        return np.dtype(self.array.dtype)

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Slices of at most 64 MiB, sparse ones made dense."""
        rows, columns = self.shape
        step = max(1, CHUNK_BYTES // max(1, columns * self.dtype.itemsize))
        for start in range(0, rows, step):
            part = self.array[start : start + step]
            yield start, part.toarray() if hasattr(part, "toarray") else np.asarray(part)


@dataclass
class GraphTables:
    """A graph as an importer found it.

    Features, weights, labels and splits of edges are in order of the edge list. Ids are rows.
    """

    name: str
    source: str
    target: str | Relation
    """the node type or the relation that is predicted"""
    counts: dict[str, int]
    """nodes of each type"""
    edges: dict[Relation, tuple[NDArray[Any], NDArray[Any]]]
    """source and destination ids, [edges] each, int32 or int64"""
    features: dict[str, FeatureTable] = field(default_factory=dict)
    edge_features: dict[Relation, FeatureTable] = field(default_factory=dict)
    weights: dict[Relation, NDArray[np.float32]] = field(default_factory=dict)
    """of edges, positive, [edges] each"""
    times: dict[Labelled, NDArray[np.int64]] = field(default_factory=dict)
    """of the nodes of a type, or of the edges of a relation"""
    labels: dict[Labelled, tuple[Labels, NDArray[Any]]] = field(default_factory=dict)
    splits: dict[str, NDArray[Any]] = field(default_factory=dict)
    names: dict[str, Sequence[str]] = field(default_factory=dict)
    """what the source called the nodes of a type, by row, where it did not number them"""
    label_names: dict[Labelled, list[str]] = field(default_factory=dict)
    """what the source called classes, where it did not number them"""
    task_names: dict[Labelled, dict[str, list[str]]] = field(default_factory=dict)
    """the same by task, where labels are of several"""
    column_names: dict[Labelled, list[str]] = field(default_factory=dict)
    """what it called columns of features"""
    also: tuple[Relation, ...] = ()
    """relations whose edges are predicted besides those of a target relation"""
    notes: list[str] = field(default_factory=list)
    """what the user should know about how the source was read"""


def target_relations(tables: GraphTables) -> tuple[Relation, ...]:
    """The relations whose edges are predicted; none where nodes are."""
    return () if isinstance(tables.target, str) else (tables.target, *tables.also)


def labelled(tables: GraphTables) -> list[Labelled]:
    """What a source predicts if it says no more: node types with labels, or else relations."""
    nodes = [each for each in tables.labels if isinstance(each, str)]
    return list(nodes or tables.labels)


def align_labels(tables: GraphTables) -> None:
    """Let edges of several target relations have as many classes, where they have classes."""
    chosen = [each for each in target_relations(tables) if each in tables.labels]
    classes = [tables.labels[each][0] for each in chosen]
    if len(chosen) > 1 and any(each in tables.label_names for each in chosen):
        _number_alike(tables, chosen)
    elif len(chosen) > 1 and all(each.kind == "class" for each in classes):
        most = max(each.classes for each in classes)
        for each in chosen:
            tables.labels[each] = (Labels("class", most), tables.labels[each][1])


def _number_alike(tables: GraphTables, relations: Sequence[Relation]) -> None:
    """Let classes that are called the same have the same number in several relations.

    Raises
    ------
    GraphError: in some of them classes are numbers.
    """
    for each in relations:
        if each not in tables.label_names:
            raise GraphError(
                f"labels of {each}: expected texts, as in other relations that are predicted"
            )
    names = sorted({name for each in relations for name in tables.label_names[each]})
    for each in relations:
        places = np.searchsorted(names, tables.label_names[each])
        _, values = tables.labels[each]
        found = np.where(values >= 0, np.append(places, -1)[values], -1).astype(np.int64)
        tables.labels[each] = (Labels("class", max(1, len(names))), found)
        tables.label_names[each] = names


def read_relation(src: str, rel: str, dst: str, taken: dict[Relation, Any], where: str) -> Relation:
    """A relation whose names are made safe for paths, refused if that makes it another's.

    Raises
    ------
    GraphError: two relations of the source have the same safe names.
    """
    relation = Relation(safe_name(src), safe_name(rel), safe_name(dst))
    if relation in taken:
        raise GraphError(
            f"{where}: relation {(src, rel, dst)}: expected distinct names once other characters "
            f"are replaced by _, given {relation} twice"
        )
    return relation


def edge_ids_array(values: NDArray[Any]) -> NDArray[Any]:
    """Ids as the graph directory's builder takes them: int32 and int64 as they are, else int64."""
    if values.dtype in (np.dtype(np.int32), np.dtype(np.int64)):
        return values
    return values.astype(np.int64)


def read_weights(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Weights of edges, of one column.

    Raises
    ------
    GraphError: they are no numbers, or have several columns.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise GraphError(
            f"{where}: expected numbers of shape [edges], given {values.dtype} of shape "
            f"{list(values.shape)}"
        )
    return values.astype(np.float32)


def join_tasks(
    tasks: Mapping[str, tuple[Labels, NDArray[Any]]], where: str
) -> tuple[Labels, NDArray[np.float32]]:
    """Labels of several tasks, side by side.

    Raises
    ------
    GraphError: they are not of as many nodes or edges, or have too many classes.
    """
    lengths = {name: len(values) for name, (_, values) in tasks.items()}
    if len(set(lengths.values())) > 1:
        raise GraphError(f"{where}: expected as many labels of every task, given {lengths}")
    for name, (labels, _) in tasks.items():
        check_name(name, "task", where)
        if labels.kind == "class" and labels.classes > _MOST_CLASSES:
            raise GraphError(
                f"{where}: task {name}: expected at most {_MOST_CLASSES:,} classes, given "
                f"{labels.classes:,}"
            )
    columns = [v if v.ndim == 2 else v[:, np.newaxis] for _, v in tasks.values()]
    found = np.concatenate(columns, 1, dtype=np.float32)
    own = tuple((name, labels) for name, (labels, _) in tasks.items())
    return Labels("tasks", sum(labels.classes for _, labels in own), own), found


def read_times(values: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Times, of one column: integers of any unit as they are, dates in seconds since 1970.

    Raises
    ------
    GraphError: they are neither, have several columns, or some are missing.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind == "f" and (np.isfinite(values) & (values == np.trunc(values))).all():
        # What has passed through a table with other numbers.
        values = values.astype(np.int64)
    if values.dtype.kind == "M":
        if np.isnat(values).any():
            raise GraphError(f"{where}: of {int(np.isnat(values).argmax())}: expected a date")
        values = values.astype("datetime64[s]").astype(np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise GraphError(
            f"{where}: expected integers (of any unit) or dates, one each, given {values.dtype} of "
            f"shape {list(values.shape)}"
        )
    return values.astype(np.int64)


def read_labels(
    values: NDArray[Any], where: str, classes: int | None = None
) -> tuple[Labels, NDArray[Any]]:
    """Decide the kind of labels from their dtype and shape.

    Integers of shape [n] or [n, 1] are classes (negative: unlabelled); integers or booleans of
    shape [n, c] are multi-hot; floats are float labels.

    Parameters
    ----------
    classes: the number of classes where the source says it; otherwise the largest class + 1.

    Raises
    ------
    GraphError: another dtype or shape.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2):
        raise GraphError(f"{where}: expected labels [n] or [n, c], given {list(values.shape)}")
    width = 1 if values.ndim == 1 else int(values.shape[1])
    if np.issubdtype(values.dtype, np.floating):
        return Labels("float", width), values.astype(np.float32)
    if not (np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_):
        raise GraphError(f"{where}: expected integer or float labels, given {values.dtype}")
    if values.ndim == 2:
        if values.size and (values.min() < 0 or values.max() > 1):
            raise GraphError(f"{where}: expected multi-hot labels of 0 and 1")
        return Labels("multi_hot", width), values.astype(np.uint8)
    found = np.maximum(values.astype(np.int64), -1)
    largest = int(found.max(initial=0)) + 1
    return Labels("class", classes if classes is not None else max(1, largest)), found
