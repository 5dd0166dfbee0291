"""Import a graph of NetworkX, or a GraphML file; docs/howto/import.md names the attributes.

Nodes are numbered in the graph's order, and their names are stored with the graph. If only edges
have labels, they are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

import numpy as np

from hopper.errors import GraphError
from hopper.graph.importers.arrays import EDGES, NODE, TableReader, describe_classes
from hopper.graph.importers.source_files import explain_errors, require_file
from hopper.graph.importers.tables import GraphTables

_FEATURES, _LABEL, _SPLIT, _WEIGHT, _TIME = "features", "label", "split", "weight", "time"
_KEYS: Final = {"features": _FEATURES, "labels": _LABEL, "times": _TIME, "weights": _WEIGHT}
_Attributes = Sequence[dict[str, Any]]
"""The attributes of each node or edge."""
_KINDS: Final = {Integral: (np.int64, -1), Real: (np.float32, np.nan)}
"""The dtype of labels, and what stands for a missing one."""


def read_graphml(file: Path) -> GraphTables:
    """Read a GraphML file."""
    import networkx

    require_file(file, "GraphML")
    with explain_errors(f"{file}: not readable as GraphML"):
        graph = networkx.read_graphml(file)
    return tables_from_networkx(graph, file.stem, str(file))


def tables_from_networkx(graph: Any, name: str, where: str) -> GraphTables:
    """Convert a ``networkx`` graph of one node type; an undirected edge becomes two."""
    number = {node: row for row, node in enumerate(graph)}
    reader = TableReader(name, f"NetworkX graph {Path(where).name}", where)
    edges = [(number[src], number[dst], dict(data)) for src, dst, data in graph.edges(data=True)]
    if not graph.is_directed():
        # A self-loop is its own reverse.
        edges += [(dst, src, dict(data)) for src, dst, data in edges if src != dst]
    ends = np.array([edge[:2] for edge in edges], np.int64).reshape(-1, 2).T.copy()
    of_edges, of_nodes = [data for *_, data in edges], [dict(graph.nodes[n]) for n in number]
    columns, edge_splits = _take_columns(of_edges, f"{where}: edge", reader, _WEIGHT)
    edge_table = reader.add_edges(EDGES, ends, columns, _KEYS)
    columns, node_splits = _take_columns(of_nodes, f"{where}: node", reader, _FEATURES)
    node_table = reader.add_nodes(NODE, columns, _KEYS, len(number))
    for of, table in (("edge", edge_table), ("node", node_table)):
        if table.classes:
            classes = describe_classes(table.classes[""])
            reader.tables.notes.append(f"{where}: {of} {_LABEL}: {classes}")
    if any(node != row for node, row in number.items()):
        node_table.names = [str(node) for node in number]
    is_of_edges = edge_table.labels is not None and node_table.labels is None
    reader.tables.targets = (EDGES if is_of_edges else NODE,)
    target, splits = (edge_table, edge_splits) if is_of_edges else (node_table, node_splits)
    target.splits = {
        split: np.array([row for row, name in enumerate(splits) if str(name) == split], np.int64)
        for split in sorted({str(name) for name in splits if name not in (None, "")})
    }
    return reader.tables


def _take_columns(
    data: _Attributes, where: str, reader: TableReader, special: str
) -> tuple[dict[str, Any], list[Any]]:
    """Take columns out of attributes, ``special`` too; return them by key, and the splits."""
    columns: dict[str, Any] = {}
    labels, splits, rows = (
        [attributes.pop(key, None) for attributes in data] for key in (_LABEL, _SPLIT, special)
    )
    known = [label for label in labels if label is not None]
    if known:
        kinds = [kind for kind in _KINDS if all(isinstance(label, kind) for label in known)]
        if kinds:
            dtype, missing = _KINDS[kinds[0]]
            columns[_LABEL] = np.array([missing if one is None else one for one in labels], dtype)
        elif all(isinstance(label, str) for label in known):
            columns[_LABEL] = labels
        else:
            given = ", ".join(sorted({type(label).__name__ for label in known}))
            raise GraphError(
                f"{where} {_LABEL}: expected integers, numbers or texts, given {given}"
            )
    if data and all(isinstance(attributes.get(_TIME), Integral) for attributes in data):
        columns[_TIME] = np.array([attributes.pop(_TIME) for attributes in data], np.int64)
    has_rows = any(row is not None for row in rows)
    if has_rows and special == _WEIGHT:
        # In NetworkX, an edge without a weight has the weight 1.
        columns[_WEIGHT] = [1.0 if weight is None else weight for weight in rows]
        has_rows = False
    names = sorted({name for attributes in data for name in attributes})
    numeric = [
        name
        for name in names
        if not has_rows and all(isinstance(attributes.get(name), Real) for attributes in data)
    ]
    left_out = [name for name in names if name not in numeric]
    if left_out:
        reader.tables.notes.append(
            f"{where} attributes left out: {', '.join(left_out)} (no number, or not there "
            "everywhere)"
        )
    if has_rows:
        lengths = [len(row) if hasattr(row, "__len__") else None for row in rows]
        width = next((length for length in lengths if length is not None), 0)
        for row, length in enumerate(lengths):
            if length != width:
                raise GraphError(
                    f"{where} {row}: {_FEATURES}: expected {width} numbers, as others have, given "
                    f"{'nothing' if length is None else length}"
                )
    elif numeric:
        rows = [[attributes[name] for name in numeric] for attributes in data]
    if has_rows or numeric:
        columns[_FEATURES] = np.array(rows, np.float32)
    return columns, splits
