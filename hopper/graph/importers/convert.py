"""Write a graph that an importer has read as a graph directory; apply the import's options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.array_file import release_pages
from hopper.graph.check_values import is_labelled
from hopper.graph.columns import FeatureColumn, tell_wide_columns
from hopper.graph.importers.check_tables import check_finite, check_labels_of_training
from hopper.graph.importers.component import keep_largest_component
from hopper.graph.importers.direction import add_reverse_relations, symmetrize_tables
from hopper.graph.importers.encode import Measure, encode
from hopper.graph.importers.encode_like import LikeGraph
from hopper.graph.importers.estimate import require_memory
from hopper.graph.importers.link_targets import draw_link_split, set_link_targets
from hopper.graph.importers.problems import Problems
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
    scale: Literal["", "standard", "minmax", "log"] = ""
    """how numbers are scaled: to mean 0 and deviation 1, to [0, 1], or to sign(x) log(1 + |x|);
    fitted on training rows where their nodes or edges are predicted, else on all"""
    encode_like: str = ""
    """a graph directory or partitioned directory, whose categories, scales and classes are used"""
    unknown_category: Literal["refuse", "zeros"] = "refuse"
    """with ``encode_like``: whether other categories and classes are refused, or taken as none"""
    row_normalize: bool = False
    """divide every row of node features by its sum, unless that is 0"""
    unlabelled_as_missing: bool = False
    """leave what has no label out of the split ``train``, instead of refusing it"""
    seed: int = 0
    memory_limit: int | None = None
    """bytes that an import of tables may take; None = half of the available memory"""

    def __post_init__(self) -> None:
        """Refuse options that contradict each other with a :class:`RequestError`."""
        if (self.encode_like or self.row_normalize) and self.scale:
            other = "--encode-like" if self.encode_like else "--row-normalize"
            raise RequestError(f"--scale: expected it without {other}, which scales too")
        if self.encode_like and self.row_normalize:
            raise RequestError("--encode-like: expected it without --row-normalize")
        if self.unknown_category != "refuse" and not self.encode_like:
            raise RequestError("--unknown-category: expected --encode-like beside it, given none")


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
    wide = tell_wide_columns(writer.schema.columns)
    return [*tables.notes, wide] if wide else tables.notes


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
    like = LikeGraph.open(options.encode_like, options.unknown_category)
    for owner, where, table in feature_tables(tables):
        into = writer.features(owner) if isinstance(owner, str) else writer.edge_features(owner)
        with phases.phase(where, table.shape[0]) as progress:
            encoded, columns, normalize = _encode(tables, owner, where, table, options, like)
            measure = Measure(columns, table.shape[0])
            chunks = _check_chunks(encoded, where, columns, tables.problems)
            _copy(chunks, into, normalize, where, measure, progress)
        writer.columns(owner, measure.finish())
    tables.problems.raise_all()


def _encode(
    tables: GraphTables,
    owner: Labelled,
    where: str,
    table: FeatureTable,
    options: ImportOptions,
    like: LikeGraph | None,
) -> tuple[FeatureTable, list[FeatureColumn], bool]:
    """Return a table as it will be stored, its columns as they were fitted, and whether its rows
    are normalized."""
    width = table.shape[1]
    columns = tables.columns.get(owner) or (FeatureColumn("", numbers=width),)
    if like is not None:
        if owner not in tables.columns:
            columns = like.columns(owner, width)
    elif options.row_normalize and isinstance(owner, str):
        columns = [replace(column, scale="row") for column in columns]
    rows, of = _training_rows(tables, owner)
    encoded, fitted, filled = encode(table, columns, options.scale, options.missing, rows)
    if filled:
        how = f" with {options.missing}" if options.missing and not like else ""
        tables.notes.append(f"{where}: {filled:,} missing numbers filled{how}")
    if options.scale:
        tables.notes.append(f"{where}: numbers scaled by {options.scale}, fitted on {of}")
    return encoded, fitted, any(column.scale == "row" for column in fitted)


def _check_features(tables: GraphTables, options: ImportOptions) -> None:
    """Read all features, only to find out what is wrong with their values."""
    for owner, where, table in feature_tables(tables):
        if not tables.problems.has_failed(owner, where):
            columns = tables.columns.get(owner) or (FeatureColumn("", numbers=table.shape[1]),)
            filled, fitted, _ = encode(table, columns, "", options.missing, None)
            for _ in _check_chunks(filled, where, fitted, tables.problems):
                pass


def _training_rows(tables: GraphTables, owner: Labelled) -> tuple[NDArray[np.int64] | None, str]:
    """Return the ascending rows that scales are fitted on, None = all; and what they are."""
    ids, first = np.sort(np.asarray(tables.splits.get("train", ()), np.int64)), 0
    if not ids.size or owner not in (target_relations(tables) or [tables.target]):
        return None, "all rows"
    for relation in target_relations(tables):
        if relation == owner:
            break
        first += tables.edges[relation][0].size
    count = tables.counts[owner] if isinstance(owner, str) else tables.edges[owner][0].size
    rows = ids[slice(*np.searchsorted(ids, (first, first + count)))] - first
    return rows, f"the {rows.size:,} training rows"


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
    """Write the names of nodes and classes."""
    for node_type, node_names in tables.names.items():
        writer.names(node_type, node_names)
    for owner, names in tables.label_names.items():
        writer.label_names(owner, names)
    for owner, by_task in tables.task_names.items():
        for task, names in by_task.items():
            writer.label_names(owner, names, task)


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


def _check_chunks(
    table: FeatureTable, where: str, columns: Sequence[FeatureColumn], problems: Problems
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Iterate over chunks as they will be stored; what is not finite is a problem."""
    dtype = np.float16 if table.dtype == np.float16 else np.float32
    names = [name for column in columns if column.name for name in column.names]
    for start, rows in table.chunks():
        with np.errstate(over="ignore"):
            converted = rows.astype(dtype, copy=False)
        check_finite(converted, start, where, names, problems)
        yield start, converted


def _copy(
    chunks: Iterator[tuple[int, NDArray[Any]]],
    out: NDArray[Any],
    row_normalize: bool,
    what: str,
    measure: Measure,
    progress: Progress,
) -> None:
    for start, rows in chunks:
        if row_normalize:
            rows = _normalize_rows(rows, f"{what}: rows from {start} on")
        measure.add(rows)
        out[start : start + rows.shape[0]] = rows
        release_pages(out)
        progress.advance(rows.shape[0])


def _normalize_rows(rows: NDArray[Any], where: str) -> NDArray[Any]:
    if rows.size and rows.min() < 0:
        raise RequestError(f"--row-normalize: {where}: expected no negative feature")
    sums = rows.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(rows / np.where(sums == 0, 1, sums), dtype=rows.dtype)
