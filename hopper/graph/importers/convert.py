"""Write a graph that an importer has read as a graph directory; apply the import's options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.array_file import release_pages
from hopper.graph.check_values import is_labelled
from hopper.graph.importers.check_tables import check_finite, check_labels_of_training
from hopper.graph.importers.component import keep_largest_component
from hopper.graph.importers.direction import add_reverse_relations, symmetrize_tables
from hopper.graph.importers.estimate import require_memory
from hopper.graph.importers.link_targets import draw_link_split, set_link_targets
from hopper.graph.importers.random_split import RandomSplit, draw_split, split_by_time
from hopper.graph.importers.tables import (
    FeatureTable,
    GraphTables,
    align_labels,
    feature_tables,
    target_relations,
)
from hopper.graph.importers.workspace import Workspace
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, NodeType, Relation
from hopper.graph.write import GraphWriter
from hopper.phases import Phases, Progress


@dataclass(frozen=True)
class ImportOptions:
    """Options that change a graph while it is imported."""

    symmetrize: bool = False
    """add the reverse of every edge of relations within one node type that has no counterpart"""
    add_reverse: Literal["", "all", "cross-type"] = ""
    """add a relation ``rev_<rel>`` with ends swapped. "all": to every relation; "cross-type": to
    relations between two node types, and symmetrise the others"""
    largest_component: bool = False
    """keep only the largest weakly connected component"""
    targets: tuple[str, ...] = ()
    """relations to predict instead of the source's target, each as src/rel/dst or as a name that
    only one relation has; or "all" """
    split: RandomSplit | None = None
    """how to draw splits; refused if the source has splits"""
    missing: Literal["", "zero", "mean"] = ""
    """what replaces missing features (NaN, or empty in tables): 0, or the mean of the column's
    other numbers; "" = missing features are refused"""
    row_normalize: bool = False
    """divide every row of node features by its sum, unless that is 0"""
    unlabelled_as_missing: bool = False
    """leave what has no label out of the split ``train``, instead of refusing it"""
    seed: int = 0
    memory_limit: int | None = None
    """bytes that an import of tables may take; None = half of the available memory"""


def write_tables(
    tables: GraphTables,
    out: str | Path,
    options: ImportOptions,
    space: Workspace | None = None,
) -> list[str]:
    """Apply the options, and write the graph directory.

    Features pass through in chunks of about 64 MiB.

    Parameters
    ----------
    space: sorts edges and limits memory; None = edges are sorted in memory.

    Returns
    -------
    Notes on the import for the user, one line each.

    Raises
    ------
    GraphError: the source contradicts itself.
    RequestError: an option does not fit the graph, or ``out`` cannot be written.
    """
    if options.targets and not tables.problems:
        set_link_targets(tables, options.targets)
    if not (options.targets and tables.problems):
        check_labels_of_training(tables, leave_out=options.unlabelled_as_missing)
    if tables.problems:
        # What is wrong with values of features is found when they are copied.
        _check_features(tables, options)
    tables.problems.raise_all()
    if space is not None:
        require_memory(tables, options, space)
    _apply_options(tables, options)
    phases = Phases() if space is None else space.phases
    with GraphWriter(out, _schema(tables)) as writer:
        _write_edges(tables, writer, phases, space)
        _write_features(tables, writer, phases, options)
        _write_targets(tables, writer)
        _write_names(tables, writer)
    return tables.notes


def _apply_options(tables: GraphTables, options: ImportOptions) -> None:
    """Change edges and splits as the options say, and give labels to all nodes or edges."""
    if options.largest_component:
        keep_largest_component(tables)
    symmetrize = options.symmetrize or options.add_reverse == "cross-type"
    if symmetrize:
        symmetrize_tables(tables)
    if options.add_reverse:
        add_reverse_relations(tables, skip_same_type=symmetrize)
    if options.split is not None:
        _draw_splits(tables, options.split, options.seed)
    align_labels(tables)


def _write_edges(
    tables: GraphTables, writer: GraphWriter, phases: Phases, space: Workspace | None
) -> None:
    sort = None if space is None else space.engine.sort_edges
    for relation, (src, dst) in tables.edges.items():
        what = f"edges of {relation}: in order"
        degrees = 8 * tables.counts[relation.src]
        reserved = nullcontext() if space is None else space.reserve(degrees, what)
        with phases.phase(what), reserved:
            writer.topology(relation, src, dst, sort)


def _write_features(
    tables: GraphTables, writer: GraphWriter, phases: Phases, options: ImportOptions
) -> None:
    for owner, where, table in feature_tables(tables):
        filled = _fill_missing(table, options.missing, where, tables.notes)
        chunks = _check_chunks(filled, where, tables, owner)
        normalize = options.row_normalize and isinstance(owner, str)
        into = writer.features(owner) if isinstance(owner, str) else writer.edge_features(owner)
        with phases.phase(where, table.shape[0]) as progress:
            _copy(chunks, into, normalize, where, progress)
    tables.problems.raise_all()


def _check_features(tables: GraphTables, options: ImportOptions) -> None:
    """Read all features, only to find out what is wrong with their values."""
    for owner, where, table in feature_tables(tables):
        if not tables.problems.has_failed(owner, where):
            filled = _fill_missing(table, options.missing, where, [])
            for _ in _check_chunks(filled, where, tables, owner):
                pass


def _write_targets(tables: GraphTables, writer: GraphWriter) -> None:
    """Write weights and times of edges, labels, and splits."""
    for relation, weights in tables.weights.items():
        writer.edge_weights(relation, weights)
    for owner, times in tables.times.items():
        writer.times(owner, times)
    for owner, (_, values) in tables.labels.items():
        writer.labels(owner, values)
    for name, ids in tables.splits.items():
        writer.split(name, ids)


def _write_names(tables: GraphTables, writer: GraphWriter) -> None:
    """Write the names of nodes, classes and columns."""
    for node_type, node_names in tables.names.items():
        writer.names(node_type, node_names)
    for owner, names in tables.label_names.items():
        writer.label_names(owner, names)
    for owner, by_task in tables.task_names.items():
        for task, names in by_task.items():
            writer.label_names(owner, names, task)
    for owner, names in tables.column_names.items():
        writer.column_names(owner, names)


def _draw_splits(tables: GraphTables, split: RandomSplit, seed: int) -> None:
    if tables.splits:
        raise RequestError(f"--split: the source has its own splits, {sorted(tables.splits)}")
    targets = target_relations(tables)
    if split.by_time:
        tables.splits = _split_by_time(tables, split)
    elif targets:
        tables.splits = draw_link_split(split, tables, seed)
        _leave_out_unlabelled(tables, targets)
    elif tables.target in tables.labels:
        labels, values = tables.labels[tables.target]
        tables.splits = draw_split(split, labels, values, seed)
    else:
        raise RequestError("--split: expected a target node type with labels")
    sizes = ", ".join(f"{ids.size} {name}" for name, ids in tables.splits.items())
    how = "by time" if split.by_time else f"drawn with seed {seed}"
    tables.notes.append(f"split {how}: {sizes}")


def _split_by_time(tables: GraphTables, split: RandomSplit) -> dict[str, NDArray[np.int64]]:
    """Split the target's nodes or edges by their times."""
    owners: Sequence[Labelled] = target_relations(tables) or [tables.target]
    for owner in owners:
        if owner not in tables.times:
            raise RequestError(
                f"--split: expected times of {owner}, by which to split; it has none"
            )
    times = np.concatenate([tables.times[owner] for owner in owners])
    has_label = np.ones(times.size, np.bool_)
    if all(owner in tables.labels for owner in owners):
        has_label = np.concatenate([is_labelled(*tables.labels[owner]) for owner in owners])
    elif isinstance(tables.target, str):
        raise RequestError("--split: expected a target node type with labels")
    return split_by_time(split, times, has_label)


def _leave_out_unlabelled(tables: GraphTables, targets: Sequence[Relation]) -> None:
    """Remove unlabelled edges from the splits, where labels of edges are predicted."""
    by_relation = [
        is_labelled(*tables.labels[relation]) for relation in targets if relation in tables.labels
    ]
    if len(by_relation) == len(targets):
        has_label = np.concatenate(by_relation)
        tables.splits = {name: ids[has_label[ids]] for name, ids in tables.splits.items()}


def _schema(tables: GraphTables) -> GraphSchema:
    return GraphSchema(
        name=tables.name,
        source=tables.source,
        target=tables.target,
        also=tables.also,
        node_types={
            name: NodeType(
                count,
                *_width(tables.features.get(name), count, f"features of {name}"),
                timed=name in tables.times,
            )
            for name, count in tables.counts.items()
        },
        relations={
            relation: EdgeType(
                src.size,
                *_width(
                    tables.edge_features.get(relation), src.size, f"edge features of {relation}"
                ),
                weighted=relation in tables.weights,
                timed=relation in tables.times,
            )
            for relation, (src, _) in tables.edges.items()
        },
        labels={owner: labels for owner, (labels, _) in tables.labels.items()},
        splits={name: ids.size for name, ids in tables.splits.items()},
    )


def _width(
    table: FeatureTable | None, count: int, what: str
) -> tuple[int | None, Literal["float32", "float16"] | None]:
    if table is None:
        return None, None
    rows, columns = table.shape
    if rows != count:
        raise GraphError(f"{what}: expected {count} rows, given {rows}")
    return columns, "float16" if table.dtype == np.float16 else "float32"


@dataclass(frozen=True)
class _FilledTable:
    """A table in which missing numbers are replaced.

    Attributes
    ----------
    values: [columns] float64, the number that replaces missing ones of each column.
    """

    table: FeatureTable
    values: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.table.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the chunks."""
        return self.table.dtype

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Iterate over the table's chunks, with missing numbers replaced."""
        for start, rows in self.table.chunks():
            yield start, np.where(np.isnan(rows), self.values.astype(rows.dtype), rows)


def _fill_missing(
    table: FeatureTable, missing: str, what: str, notes: list[str]
) -> FeatureTable | _FilledTable:
    """Return the table with missing numbers replaced as ``missing`` says; this reads it once."""
    if not missing or table.dtype.kind != "f":
        return table
    columns = table.shape[1]
    sums, counts, rows_read = np.zeros(columns), np.zeros(columns, np.int64), 0
    for _, rows in table.chunks():
        is_known = ~np.isnan(rows)
        sums += np.where(is_known, rows, 0).sum(0, dtype=np.float64)
        counts += is_known.sum(0)
        rows_read += len(rows)
    missing_count = rows_read * columns - int(counts.sum())
    if not missing_count:
        return table
    notes.append(f"{what}: {missing_count:,} missing numbers filled with {missing}")
    means = sums / np.maximum(counts, 1)
    return _FilledTable(table, means if missing == "mean" else np.zeros(columns))


def _check_chunks(
    table: FeatureTable, where: str, tables: GraphTables, owner: Labelled
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Iterate over chunks as they will be stored; what is not finite is a problem."""
    dtype = np.float16 if table.dtype == np.float16 else np.float32
    for start, rows in table.chunks():
        with np.errstate(over="ignore"):
            converted = rows.astype(dtype, copy=False)
        check_finite(converted, start, where, tables.column_names.get(owner, []), tables.problems)
        yield start, converted


def _copy(
    chunks: Iterator[tuple[int, NDArray[Any]]],
    out: NDArray[Any],
    row_normalize: bool,
    what: str,
    progress: Progress,
) -> None:
    for start, rows in chunks:
        out[start : start + rows.shape[0]] = (
            _normalize_rows(rows, f"{what}: rows from {start} on") if row_normalize else rows
        )
        release_pages(out)
        progress.advance(rows.shape[0])


def _normalize_rows(rows: NDArray[Any], where: str) -> NDArray[Any]:
    if rows.size and rows.min() < 0:
        raise RequestError(f"--row-normalize: {where}: expected no negative feature")
    sums = rows.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(rows / np.where(sums == 0, 1, sums), dtype=rows.dtype)
