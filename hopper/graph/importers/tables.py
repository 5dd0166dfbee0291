"""A graph as an importer reads it, before it becomes a graph directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.columns import FeatureColumn
from hopper.graph.importers.problems import Problems
from hopper.graph.layout import check_name, safe_name
from hopper.graph.schema import Labelled, Labels, Relation

CHUNK_BYTES = 64 << 20
_MOST_CLASSES = 1 << 24
"""Limit for one of several tasks, because their classes are stored in float32."""


class FeatureTable(Protocol):
    """Features that are read from the first to the last row, in chunks of bounded size."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the chunks."""

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Iterate over all rows in pairs of a first row and the rows [n, columns] from there on."""


@dataclass(frozen=True)
class ArrayFeatures:
    """Features in an array, which may be a memory map, or in a SciPy CSR matrix."""

    array: Any
    """[rows, columns]: a numpy array, or a sparse one that has slices of rows and ``toarray()``"""

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
        """Iterate over slices of at most 64 MiB; those of a sparse matrix become dense."""
        rows, columns = self.shape
        step = max(1, CHUNK_BYTES // max(1, columns * self.dtype.itemsize))
        for start in range(0, rows, step):
            chunk = self.array[start : start + step]
            yield start, chunk.toarray() if hasattr(chunk, "toarray") else np.asarray(chunk)


@dataclass
class GraphTables:
    """A graph as an importer read it.

    Ids are numbers of rows. Features, weights, times, labels and splits of edges are in the order
    of the edge list.
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
    """weights of edges, positive, [edges] each"""
    times: dict[Labelled, NDArray[np.int64]] = field(default_factory=dict)
    """times of the nodes of a type, or of the edges of a relation"""
    labels: dict[Labelled, tuple[Labels, NDArray[Any]]] = field(default_factory=dict)
    splits: dict[str, NDArray[Any]] = field(default_factory=dict)
    names: dict[str, Sequence[str]] = field(default_factory=dict)
    """the source's names of a type's nodes, by row, unless it numbers them"""
    label_names: dict[Labelled, list[str]] = field(default_factory=dict)
    """the source's names of classes, unless it numbers them"""
    task_names: dict[Labelled, dict[str, list[str]]] = field(default_factory=dict)
    """the source's names of classes by task, where there are several tasks"""
    columns: dict[Labelled, Sequence[FeatureColumn]] = field(default_factory=dict)
    """the source's columns of the features, if they have names"""
    also: tuple[Relation, ...] = ()
    """relations that are predicted together with a target relation"""
    notes: list[str] = field(default_factory=list)
    """notes for the user on how the source was read"""
    problems: Problems = field(default_factory=Problems)
    """what is wrong with the source, which refuses it before anything is written"""


def target_relations(tables: GraphTables) -> tuple[Relation, ...]:
    """Return the relations whose edges are predicted; empty where nodes are predicted."""
    return () if isinstance(tables.target, str) else (tables.target, *tables.also)


def feature_tables(tables: GraphTables) -> Iterator[tuple[Labelled, str, FeatureTable]]:
    """Iterate over features of nodes and edges: of what they are, in words too, and the table."""
    for name, table in tables.features.items():
        yield name, f"features of {name}", table
    for relation, table in tables.edge_features.items():
        yield relation, f"edge features of {relation}", table


def find_labelled(tables: GraphTables) -> list[Labelled]:
    """Return the node types with labels, or if there are none, the relations with labels."""
    node_types = [owner for owner in tables.labels if isinstance(owner, str)]
    return list(node_types or tables.labels)


def align_labels(tables: GraphTables) -> None:
    """Give all target relations whose labels are classes the same classes."""
    relations = [relation for relation in target_relations(tables) if relation in tables.labels]
    labels = [tables.labels[relation][0] for relation in relations]
    if len(relations) > 1 and any(relation in tables.label_names for relation in relations):
        _merge_class_names(tables, relations)
    elif len(relations) > 1 and all(of_relation.kind == "class" for of_relation in labels):
        classes = max(of_relation.classes for of_relation in labels)
        for relation in relations:
            tables.labels[relation] = (Labels("class", classes), tables.labels[relation][1])


def _merge_class_names(tables: GraphTables, relations: Sequence[Relation]) -> None:
    """Give classes of the same name the same number in several relations.

    Raises
    ------
    GraphError: the classes of some relation have no names.
    """
    for relation in relations:
        if relation not in tables.label_names:
            raise GraphError(
                f"labels of {relation}: expected texts, as in other relations that are predicted"
            )
    names = sorted({name for relation in relations for name in tables.label_names[relation]})
    for relation in relations:
        numbers = np.searchsorted(names, tables.label_names[relation])
        _, values = tables.labels[relation]
        classes = np.where(values >= 0, np.append(numbers, -1)[values], -1).astype(np.int64)
        tables.labels[relation] = (Labels("class", max(1, len(names))), classes)
        tables.label_names[relation] = names


def read_relation(src: str, rel: str, dst: str, taken: dict[Relation, Any], where: str) -> Relation:
    """Make a relation's names safe for paths, and check that it is not in ``taken``.

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
    """Convert ids to a dtype that :func:`build_topology` takes: int32 or int64."""
    if values.dtype in (np.dtype(np.int32), np.dtype(np.int64)):
        return values
    return values.astype(np.int64)


def read_weights(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Convert weights of edges, [edges] or [edges, 1], to float32.

    Raises
    ------
    GraphError: they are not numbers, or have several columns.
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
    """Put the labels of several tasks side by side.

    Raises
    ------
    GraphError: the tasks have different numbers of labels, or one has too many classes.
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
    joined = np.concatenate(columns, 1, dtype=np.float32)
    by_task = tuple((name, labels) for name, (labels, _) in tasks.items())
    return Labels("tasks", sum(labels.classes for _, labels in by_task), by_task), joined


def read_times(values: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Convert times, [n] or [n, 1]: dates to seconds since 1970; integers stay, in any unit.

    Raises
    ------
    GraphError: they are neither, have several columns, or some are missing.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind == "f" and (np.isfinite(values) & (values == np.trunc(values))).all():
        # Integers become floats in a table that has floats in other columns.
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
    """Convert labels, whose dtype and shape decide their kind.

    Integers of shape [n] or [n, 1] are classes (negative = unlabelled). Integers or booleans of
    shape [n, c] are multi-hot. Floats are float labels.

    Parameters
    ----------
    classes: number of classes; None = the largest class + 1.

    Raises
    ------
    GraphError: the labels have another dtype or shape.
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
    numbers = np.maximum(values.astype(np.int64), -1)
    largest = int(numbers.max(initial=0)) + 1
    return Labels("class", classes if classes is not None else max(1, largest)), numbers
