"""Import a folder of node and edge tables, CSV or Parquet; specified in
docs/reference/graph-directory.md.

``nodes.csv`` or ``nodes__<type>.csv``: ``id`` (any text, distinct), optionally ``label`` (a class,
an integer or a text; empty: unlabelled), or ``label_0``, ``label_1``, ... (multi-hot, 0 or 1), or
``value`` (a float label; empty: NaN); optionally ``split`` (a split's name, or empty) and ``time``
(an integer of any unit, or a date); every other column is a feature: numbers, or texts, each of
which becomes a column of 0 and 1. ``edges.csv`` or ``edges__<src>__<rel>__<dst>.csv``: ``src``,
``dst`` (ids of the node tables), optionally ``weight`` (positive), and labels, ``split`` and
``time`` as of nodes; every other column is an edge feature. Rows are numbered in the order of the
file. ``.parquet`` files have the same names and columns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.check_tables import check_tables
from hopper.graph.importers.convert import ImportOptions, write_tables
from hopper.graph.importers.csv_tables import CsvFile
from hopper.graph.importers.encode_like import LikeGraph
from hopper.graph.importers.estimate import estimate_import
from hopper.graph.importers.feature_columns import describe_classes
from hopper.graph.importers.parquet_tables import ParquetFile
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.read_tables import (
    EdgeTable,
    NodeTable,
    TableContent,
    read_edge_table,
    read_node_table,
)
from hopper.graph.importers.table_file import TableFile
from hopper.graph.importers.tables import GraphTables, find_labelled, read_relation
from hopper.graph.importers.workspace import Watcher, Workspace, open_workspace
from hopper.graph.layout import check_name
from hopper.graph.schema import Labelled, Relation
from hopper.phases import Phases

Suffix = Literal["csv", "parquet"]
_KINDS: Final = {"csv": "CSV", "parquet": "Parquet"}


def read_folder(
    folder: Path,
    suffix: Suffix,
    space: Workspace | None = None,
    problems: Problems | None = None,
    *,
    target_follows: bool = False,
    like: LikeGraph | None = None,
) -> GraphTables:
    """Read a folder of tables.

    The target is the node type or the relations whose tables have a ``split`` column. Without such
    a column it is the node type with labels, or else the relation with labels, or the only node
    type.

    Parameters
    ----------
    space: memory and folder for the work; None = half of the memory, and a temporary folder.
    problems: collects what is wrong with tables. Columns that are wrong are left out of the result.
        None = it is raised.
    target_follows: the caller will choose the target relations, so several tables may qualify.
    like: the graph whose encodings are used, and whose target where no table has splits.

    Raises
    ------
    GraphError: there are no tables, or without ``problems``, one is malformed. The text names file,
        line or row, and column.
    RequestError: a library that reads or joins tables is missing, or memory does not suffice.
    """
    if space is None:
        with open_workspace(Path(tempfile.gettempdir()) / "hopper-tables") as workspace:
            return read_folder(folder, suffix, workspace, target_follows=target_follows, like=like)
    found = Problems() if problems is None else problems
    node_files, edge_files = find_tables(folder, suffix, found)
    tables = GraphTables(
        folder.name, f"{_KINDS[suffix]} tables {folder.name}", "", {}, {}, problems=found
    )
    owners: list[Labelled] = [*node_files, *edge_files]
    likes = {} if like is None else {owner: like.table(owner) for owner in owners}
    nodes: dict[str, NodeTable] = {}
    by_owner: dict[Labelled, TableContent] = {}
    for name, file in node_files.items():
        node_table = found.attempt(
            file.file, "table", read_node_table, file, space, likes.get(name)
        )
        if node_table is not None:
            nodes[name] = by_owner[name] = node_table
            tables.counts[name] = node_table.count
    edges: dict[Relation, EdgeTable] = {}
    for relation, file in edge_files.items():
        ends = (nodes.get(relation.src), nodes.get(relation.dst))
        edge_table = found.attempt(
            file.file, "table", read_edge_table, file, *ends, space, likes.get(relation)
        )
        if edge_table is not None and None not in ends:
            edges[relation] = by_owner[relation] = edge_table
    tables.notes += [note for like_table in likes.values() for note in like_table.notes]
    _fill(tables, nodes, edges)
    # Where a table or a column is left out, the target may seem to be unclear.
    for_target = Problems() if found else found
    for_target.attempt(
        folder, "target", _choose_target, tables, by_owner, folder, target_follows, like
    )
    if problems is None:
        found.raise_all()
    return tables


def import_folder(
    folder: Path,
    suffix: Suffix,
    out: Path,
    options: ImportOptions,
    *,
    name: str | None,
    watcher: Watcher,
) -> list[str]:
    """Read a folder of tables and write a graph directory, as ``import_graph`` does."""
    problems = Problems()
    nodes, edges = find_tables(folder, suffix, problems)
    like = LikeGraph.open(options.encode_like, options.unknown_category)
    with open_workspace(out, options.memory_limit, Phases(watcher.progress)) as space:
        both_ways = bool(options.symmetrize or options.add_reverse)
        estimate = problems.attempt(
            folder, "estimate", estimate_import, nodes, edges, space, both_ways=both_ways
        )
        if estimate is not None:
            watcher.tell(estimate.tell(out, space))
        tables = read_folder(
            *(folder, suffix, space, problems),
            target_follows=bool(options.targets),
            like=like,
        )
        if name is not None:
            tables.name = name
        check_tables(tables)
        return write_tables(tables, out, options, space)


def find_tables(
    folder: Path, suffix: Suffix, problems: Problems
) -> tuple[dict[str, TableFile], dict[Relation, TableFile]]:
    """Find the node tables by type and the edge tables by relation, and read their headers.

    A file whose name or header is wrong is a problem, and is left out.

    Raises
    ------
    GraphError: there are no node tables.
    """
    file_class: Callable[[Path, Problems], TableFile] = CsvFile if suffix == "csv" else ParquetFile
    nodes: dict[str, TableFile | None] = {}
    for file in _list_files(folder, "nodes", suffix):
        node_type = problems.attempt(file, "name", _name_type, file, nodes)
        if node_type is not None:
            nodes[node_type] = problems.attempt(file, "table", file_class, file, problems)
    if not nodes and not problems:
        raise GraphError(
            f"{folder}: expected nodes.{suffix} or nodes__<type>.{suffix}, given neither"
        )
    edges: dict[Relation, TableFile] = {}
    for file in _list_files(folder, "edges", suffix):
        relation = problems.attempt(file, "name", _name_relation, file, nodes, edges)
        table = problems.attempt(file, "table", file_class, file, problems)
        if relation is not None and table is not None:
            edges[relation] = table
    return {name: table for name, table in nodes.items() if table is not None}, edges


def _name_type(file: Path, taken: Mapping[str, Any]) -> str:
    """Return the node type that a file's name tells."""
    node_type = _split_file_name(file, 1, ["node"])[0]
    if node_type in taken:
        raise GraphError(f"{file}: node type {node_type} has two tables")
    return node_type


def _name_relation(file: Path, nodes: Mapping[str, Any], taken: dict[Relation, Any]) -> Relation:
    """Return the relation that a file's name tells, whose node types have tables."""
    src, rel, dst = _split_file_name(file, 3, ["node", "edge", "node"])
    relation = read_relation(src, rel, dst, taken, str(file))
    for end in (src, dst):
        if end not in nodes:
            raise GraphError(f"{file}: expected a table nodes__{end}{file.suffix}, given none")
    return relation


def _fill(
    tables: GraphTables, nodes: Mapping[str, NodeTable], edges: Mapping[Relation, EdgeTable]
) -> None:
    """Add the content of the tables, but for the splits."""
    for name, table in nodes.items():
        if table.features is not None:
            tables.features[name] = table.features
            tables.columns[name] = table.features.columns
        if table.labels is not None:
            tables.labels[name] = table.labels
            _add_label_names(tables, name, table.label_names, table.task_names)
        if table.times is not None:
            tables.times[name] = table.times
        if table.names is not None:
            tables.names[name] = table.names
    for relation, edge_table in edges.items():
        tables.edges[relation] = (edge_table.src, edge_table.dst)
        if edge_table.features is not None:
            tables.edge_features[relation] = edge_table.features
            tables.columns[relation] = edge_table.features.columns
        if edge_table.weights is not None:
            tables.weights[relation] = edge_table.weights
        if edge_table.times is not None:
            tables.times[relation] = edge_table.times
        if edge_table.labels is not None:
            tables.labels[relation] = edge_table.labels
            _add_label_names(tables, relation, edge_table.label_names, edge_table.task_names)


def _choose_target(
    tables: GraphTables,
    by_owner: Mapping[Labelled, TableContent],
    folder: Path,
    target_follows: bool,
    like: LikeGraph | None,
) -> None:
    """Choose the target and its splits, of those that tables have."""
    splits: dict[str | Relation, Mapping[str, Any]] = {
        owner: table.splits for owner, table in by_owner.items() if table.splits is not None
    }
    if like is not None and not splits:
        tables.target, tables.also = like.schema.target, like.schema.also
        return
    candidates: list[str | Relation] = list(splits or find_labelled(tables) or tables.counts)
    relations = [candidate for candidate in candidates if isinstance(candidate, Relation)]
    if len(relations) == len(candidates) > 1:
        _fill_link_splits(tables, relations, splits, folder)
        return
    if len(candidates) != 1 and not target_follows:
        raise GraphError(
            f"{folder}: target: expected a split or label column in one table, or "
            f"--target RELATION; given {', '.join(str(candidate) for candidate in candidates)}"
        )
    tables.target = (relations or candidates)[0]
    tables.splits = {
        check_name(name, "split", str(folder)): np.asarray(ids, np.int64)
        for name, ids in splits.get(tables.target, {}).items()
    }


def _add_label_names(
    tables: GraphTables, owner: Labelled, names: list[str], by_task: dict[str, list[str]]
) -> None:
    for task, task_names in by_task.items():
        tables.task_names.setdefault(owner, {})[task] = task_names
        tables.notes.append(f"labels of {owner}: {task}: {describe_classes(task_names)}")
    if names:
        tables.label_names[owner] = names
        tables.notes.append(f"labels of {owner}: {describe_classes(names)}")


def _fill_link_splits(
    tables: GraphTables,
    relations: list[Relation],
    splits: Mapping[str | Relation, Mapping[str, Any]],
    folder: Path,
) -> None:
    """Join the splits of several target relations, whose edges are numbered one after another."""
    tables.target, tables.also = relations[0], tuple(relations[1:])
    first, joined = 0, dict[str, list[NDArray[np.int64]]]()
    for relation in relations:
        for name, ids in splits[relation].items():
            joined.setdefault(check_name(name, "split", str(folder)), []).append(
                np.asarray(ids, np.int64) + first
            )
        first += tables.edges[relation][0].size
    tables.splits = {name: np.concatenate(parts) for name, parts in joined.items()}


def _list_files(folder: Path, prefix: str, suffix: Suffix) -> list[Path]:
    if not folder.is_dir():
        raise GraphError(f"{folder}: not a directory")
    return sorted(
        file
        for file in folder.glob(f"{prefix}*.{suffix}")
        if file.stem == prefix or file.stem.startswith(f"{prefix}__")
    )


def _split_file_name(file: Path, count: int, default: list[str]) -> list[str]:
    """Split a file's name at ``__`` into names of types and relations."""
    _, *names = file.stem.split("__")
    if not names:
        return default
    if len(names) != count:
        raise GraphError(f"{file}: expected {count} names after the first __, given {names}")
    return [check_name(name, "name", str(file)) for name in names]
