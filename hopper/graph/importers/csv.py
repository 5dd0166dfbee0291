"""Import a folder of node and edge tables with a header line; specified in
docs/graph-directory.md.

``nodes.csv`` or ``nodes__<type>.csv``: ``id`` (any text, distinct), optionally ``label`` (a class,
an integer; empty: unlabelled), or ``label_0``, ``label_1``, ... (multi-hot, 0 or 1), or ``value``
(a float label; empty: NaN); optionally ``split`` (a split's name, or empty); every other column is
a feature. ``edges.csv`` or ``edges__<src>__<rel>__<dst>.csv``: ``src``, ``dst`` (ids of the node
tables), optionally ``split``; every other column is an edge feature. Rows are numbered in the order
of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hopper.errors import GraphError
from hopper.graph.importers.csv_tables import EdgeTable, NodeTable, read_edge_table, read_node_table
from hopper.graph.importers.tables import GraphTables, read_relation
from hopper.graph.layout import check_name
from hopper.graph.schema import Relation


def read_csv(folder: Path) -> GraphTables:
    """Read such a folder.

    The target is the node type or relation whose table has a ``split`` column; without one, the
    one node type with labels, or the only node type.

    Raises
    ------
    GraphError: a table is missing or malformed; names file, line and column.
    """
    nodes: dict[str, NodeTable] = {}
    for file in _files(folder, "nodes"):
        node_type = _parts(file, 1, ["node"])[0]
        if node_type in nodes:
            raise GraphError(f"{file}: node type {node_type} has two tables")
        nodes[node_type] = read_node_table(file)
    if not nodes:
        raise GraphError(f"{folder}: expected nodes.csv or nodes__<type>.csv, given neither")
    tables = GraphTables(
        folder.name,
        f"CSV tables {folder.name}",
        "",
        {name: t.count for name, t in nodes.items()},
        {},
    )
    edges: dict[Relation, EdgeTable] = {}
    for file in _files(folder, "edges"):
        src, rel, dst = _parts(file, 3, ["node", "edge", "node"])
        relation = read_relation(src, rel, dst, edges, str(file))
        for end in (src, dst):
            if end not in nodes:
                raise GraphError(f"{file}: expected a table nodes__{end}.csv, given none")
        edges[relation] = read_edge_table(file, nodes[src].rows, nodes[dst].rows)
    _fill(tables, nodes, edges, folder)
    return tables


def _fill(
    tables: GraphTables,
    nodes: dict[str, NodeTable],
    edges: dict[Relation, EdgeTable],
    folder: Path,
) -> None:
    splits: dict[str | Relation, dict[str, Any]] = {}
    for name, table in nodes.items():
        if table.features is not None:
            tables.features[name] = table.features
        if table.labels is not None:
            tables.labels[name] = table.labels
        if not table.numbered:
            tables.names[name] = list(table.rows)
        if table.splits is not None:
            splits[name] = table.splits
    for relation, edge_table in edges.items():
        tables.edges[relation] = (edge_table.src, edge_table.dst)
        if edge_table.features is not None:
            tables.edge_features[relation] = edge_table.features
        if edge_table.splits is not None:
            splits[relation] = edge_table.splits
    candidates: list[str | Relation] = list(splits or tables.labels or nodes)
    if len(candidates) != 1:
        raise GraphError(
            f"{folder}: target: expected a split or label column in one table, "
            f"given {', '.join(str(candidate) for candidate in candidates)}"
        )
    tables.target = candidates[0]
    tables.splits = {
        check_name(name, "split", str(folder)): np.asarray(ids, np.int64)
        for name, ids in splits.get(tables.target, {}).items()
    }


def _files(folder: Path, prefix: str) -> list[Path]:
    if not folder.is_dir():
        raise GraphError(f"{folder}: not a directory")
    return sorted(
        file
        for file in folder.glob(f"{prefix}*.csv")
        if file.stem == prefix or file.stem.startswith(f"{prefix}__")
    )


def _parts(file: Path, count: int, default: list[str]) -> list[str]:
    """The names in a file's name, which ``__`` separates."""
    _, *names = file.stem.split("__")
    if not names:
        return default
    if len(names) != count:
        raise GraphError(f"{file}: expected {count} names after the first __, given {names}")
    return [check_name(name, "name", str(file)) for name in names]
