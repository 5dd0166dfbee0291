"""Apply an import's options to the tables of a graph, and write them as a graph directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.array_file import release_pages
from hopper.graph.columns import FeatureColumn, tell_wide_columns
from hopper.graph.importers.check_tables import (
    check_chunks,
    check_labels_of_training,
    check_tables,
    iter_features,
)
from hopper.graph.importers.database import Database
from hopper.graph.importers.encode import LikeGraph, Moments, encode
from hopper.graph.importers.tables import Features, GraphTables, Table
from hopper.graph.importers.transforms import (
    RandomSplit,
    add_reverse_relations,
    align_classes,
    draw_splits,
    set_link_targets,
    symmetrize,
)
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, NodeType
from hopper.graph.write import GraphWriter
from hopper.timing.phases import Phases

_SYMMETRIZED: Final = 96
"""Bytes of memory an edge while it is symmetrised: keys in both directions, sorted, and results."""
_DRAWN: Final = 40
"""Bytes of memory for each node or edge that splits are drawn from."""


@dataclass(frozen=True)
class ImportOptions:
    """Options that change a graph while it is imported."""

    symmetrize: bool = False
    """add the reverse of every edge of relations within one node type that has no counterpart"""
    add_reverse: Literal["", "all", "cross-type"] = ""
    """add a relation ``rev_<rel>`` with ends swapped. "all": to every relation; "cross-type": to
    relations between two node types, and symmetrise the others"""
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
    tables: GraphTables, out: str | Path, options: ImportOptions, database: Database | None = None
) -> list[str]:
    """Check the tables, apply the options, and write the graph directory; return notes for the
    user, one line each.

    Features pass through in chunks of about 64 MiB. A ``database`` sorts edges and limits memory;
    without one edges are sorted in memory. A GraphError names all fields at fault, a RequestError
    an option that does not fit the graph or needs more memory than the database leaves.
    """
    check_tables(tables)
    if options.targets and not tables.problems:
        set_link_targets(tables, options.targets)
    if not (options.targets and tables.problems):
        check_labels_of_training(tables, leave_out=options.unlabelled_as_missing)
    if tables.problems:
        # What is wrong with values of features is found when they are copied.
        _check_features(tables, options)
    tables.problems.raise_all()
    if database is not None:
        _require_memory(tables, options, database)
    both_ways = options.symmetrize or options.add_reverse == "cross-type"
    if both_ways:
        symmetrize(tables)
    if options.add_reverse:
        add_reverse_relations(tables, skip_same_type=both_ways)
    if options.split is not None:
        draw_splits(tables, options.split, options.seed)
    align_classes(tables)
    phases = Phases() if database is None else database.phases
    with GraphWriter(out, _make_schema(tables)) as writer:
        for relation, table in tables.edges.items():
            if database is None:
                writer.topology(relation, table.src, table.dst)
                continue
            what, degrees = f"edges of {relation}: in order", 8 * tables.nodes[relation.src].count
            with phases.phase(what), database.reserve(degrees, what):
                writer.topology(relation, table.src, table.dst, database.sort_edges)
        _write_features(tables, writer, phases, options)
        _write_columns(tables, writer)
    wide = tell_wide_columns(writer.schema.columns)
    return [*tables.notes, wide] if wide else tables.notes


def _require_memory(tables: GraphTables, options: ImportOptions, database: Database) -> None:
    """Check that memory holds the whole arrays that some options need."""
    if options.symmetrize or options.add_reverse == "cross-type":
        for relation, table in tables.edges.items():
            if relation.src == relation.dst:
                width = table.features.shape[1] if table.features else 0
                database.require(table.count * (_SYMMETRIZED + 8 * width), "--symmetrize")
    if options.split is not None:
        drawn = sum(table.count for table in tables.target_tables)
        database.require(_DRAWN * drawn, "--split")
    for table in tables.all.values():
        if table.labels is not None and table.labels[0].kind == "tasks":
            database.require(2 * table.labels[1].nbytes, "labels of several tasks")


def _write_features(
    tables: GraphTables, writer: GraphWriter, phases: Phases, options: ImportOptions
) -> None:
    like = LikeGraph.open(options.encode_like, options.unknown_category)
    for owner, where, features in iter_features(tables):
        out = writer.features(owner)
        with phases.phase(where, features.shape[0]) as progress:
            encoded, columns = _encode(tables, owner, where, features, options, like)
            normalize = any(column.scale == "row" for column in columns)
            written = Moments(columns, features.shape[0])
            for start, rows in check_chunks(encoded, where, columns, tables.problems):
                if normalize:
                    rows = _normalize_rows(rows, f"{where}: rows from {start} on")
                written.add(rows)
                out[start : start + len(rows)] = rows
                release_pages(out)
                progress.advance(len(rows))
        writer.columns(owner, written.describe())
    tables.problems.raise_all()


def _encode(
    tables: GraphTables,
    owner: Labelled,
    where: str,
    features: Features,
    options: ImportOptions,
    like: LikeGraph | None,
) -> tuple[Features, list[FeatureColumn]]:
    """Return features as they will be stored, and their columns as they were fitted."""
    table, columns = tables.all[owner], tables.all[owner].feature_columns
    if like is not None and not table.columns:
        columns = like.matrix(owner, features.shape[1])
    elif options.row_normalize and isinstance(owner, str):
        columns = [replace(column, scale="row") for column in columns]
    rows, of = None, "all rows"
    if owner in tables.targets and tables.join_splits().get("train", np.empty(0)).size:
        rows = np.sort(np.asarray((table.splits or {}).get("train", ()), np.int64))
        of = f"the {rows.size:,} training rows"
    encoded, fitted, filled = encode(features, columns, options.scale, options.missing, rows)
    if filled:
        how = f" with {options.missing}" if options.missing and not like else ""
        tables.notes.append(f"{where}: {filled:,} missing numbers filled{how}")
    if options.scale:
        tables.notes.append(f"{where}: numbers scaled by {options.scale}, fitted on {of}")
    return encoded, fitted


def _check_features(tables: GraphTables, options: ImportOptions) -> None:
    """Read all features, only to find out what is wrong with their values."""
    for owner, where, features in iter_features(tables):
        if not tables.problems.has_failed(owner, where):
            columns = tables.all[owner].feature_columns
            filled, fitted, _ = encode(features, columns, "", options.missing, None)
            for _ in check_chunks(filled, where, fitted, tables.problems):
                pass


def _normalize_rows(rows: NDArray[Any], where: str) -> NDArray[Any]:
    if rows.size and rows.min() < 0:
        raise RequestError(f"--row-normalize: {where}: expected no negative feature")
    sums = rows.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(rows / np.where(sums == 0, 1, sums), dtype=rows.dtype)


def _write_columns(tables: GraphTables, writer: GraphWriter) -> None:
    """Write weights, times, labels and splits, and the names of nodes and classes."""
    for owner, table in tables.all.items():
        columns: list[tuple[Any, Callable[[Any, Any], None]]] = [
            (table.weights, writer.edge_weights),
            (table.times, writer.times),
            (table.labels and table.labels[1], writer.labels),
            (table.names, writer.names),
            (table.servers, writer.servers),
        ]
        for values, write in columns:
            if values is not None:
                write(owner, values)
        for task, names in table.classes.items():
            writer.label_names(owner, names, task)
    for name, ids in tables.join_splits().items():
        writer.split(name, ids)


def _make_schema(tables: GraphTables) -> GraphSchema:
    def form(table: Table) -> dict[str, Any]:
        form: dict[str, Any] = {"count": table.count, "timed": table.times is not None}
        if table.features is not None:
            form["feature_dim"] = table.features.shape[1]
            form["feature_dtype"] = "float16" if table.features.dtype == np.float16 else "float32"
        return form

    return GraphSchema(
        tables.name,
        {name: NodeType(**form(table)) for name, table in tables.nodes.items()},
        {
            relation: EdgeType(**form(table), weighted=table.weights is not None)
            for relation, table in tables.edges.items()
        },
        tables.targets[0],
        {owner: table.labels[0] for owner, table in tables.all.items() if table.labels is not None},
        {name: ids.size for name, ids in tables.join_splits().items()},
        tables.source,
        tuple(tables.target_relations[1:]),
    )
