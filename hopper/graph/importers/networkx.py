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
from hopper.graph.importers.arrays import EDGES, NODE, describe_classes, read_edges, set_column
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import GraphTables, Table

_FEATURES, _LABEL, _SPLIT, _WEIGHT, _TIME = "features", "label", "split", "weight", "time"
_Data = Sequence[dict[str, Any]]
"""The attributes of each node or edge."""
_KINDS: Final = {Integral: (np.int64, -1), Real: (np.float32, np.nan)}
"""The dtype of labels, and what stands for a missing one."""


def read_graphml(file: Path) -> GraphTables:
    """Read a GraphML file."""
    import networkx

    require_file(file, "GraphML")
    try:
        graph = networkx.read_graphml(file)
    # The library raises many kinds of errors for damaged files.
    except Exception as error:
        raise GraphError(f"{file}: not readable as GraphML: {first_line(error)}") from error
    return tables_from_networkx(graph, file.stem, str(file))


def tables_from_networkx(graph: Any, name: str, where: str) -> GraphTables:
    """Convert a ``networkx`` graph of one node type; an undirected edge becomes two."""
    number = {node: row for row, node in enumerate(graph)}
    tables = GraphTables(name, f"NetworkX graph {Path(where).name}")
    edges = [(number[src], number[dst], dict(data)) for src, dst, data in graph.edges(data=True)]
    if not graph.is_directed():
        # A self-loop is its own reverse.
        edges += [(dst, src, dict(data)) for src, dst, data in edges if src != dst]
    ends = np.array([edge[:2] for edge in edges], np.int64).reshape(-1, 2)
    edge_table = tables.edges[EDGES] = read_edges(ends.T.copy(), f"{where}: edges")
    node_table = tables.nodes[NODE] = Table(len(number))
    edge_data, node_data = [data for *_, data in edges], [dict(graph.nodes[n]) for n in number]
    weights = [data.pop(_WEIGHT, None) for data in edge_data]
    if any(weight is not None for weight in weights):
        # In NetworkX, an edge without a weight has the weight 1.
        filled = [1.0 if weight is None else weight for weight in weights]
        set_column(edge_table, "weights", filled, f"{where}: {_WEIGHT} of edges")
    edge_splits = _take_columns(edge_table, edge_data, f"{where}: edge", tables.notes)
    rows = [data.pop(_FEATURES, None) for data in node_data]
    node_splits = _take_columns(node_table, node_data, f"{where}: node", tables.notes, rows)
    if any(node != row for node, row in number.items()):
        node_table.names = [str(node) for node in number]
    of_edges = edge_table.labels is not None and node_table.labels is None
    tables.targets = (EDGES if of_edges else NODE,)
    target, splits = (edge_table, edge_splits) if of_edges else (node_table, node_splits)
    target.splits = {
        split: np.array([row for row, name in enumerate(splits) if str(name) == split], np.int64)
        for split in sorted({str(name) for name in splits if name not in (None, "")})
    }
    return tables


def _take_columns(
    table: Table, data: _Data, where: str, notes: list[str], rows: Sequence[Any] = ()
) -> list[Any]:
    """Take labels, times and features out of attributes, and return the splits.

    All nodes or edges must have a time, or none is taken. Without rows of features, attributes that
    are numbers everywhere become one column each; a note names the others.
    """
    labels: Any = [attributes.pop(_LABEL, None) for attributes in data]
    known = [label for label in labels if label is not None]
    if known and not all(isinstance(label, str) for label in known):
        kinds = [kind for kind in _KINDS if all(isinstance(label, kind) for label in known)]
        if not kinds:
            given = ", ".join(sorted({type(label).__name__ for label in known}))
            raise GraphError(
                f"{where} {_LABEL}: expected integers, numbers or texts, given {given}"
            )
        dtype, missing = _KINDS[kinds[0]]
        labels = np.array([missing if label is None else label for label in labels], dtype)
    set_column(table, "labels", labels if known else None, f"{where} {_LABEL}")
    if table.classes:
        notes.append(f"{where} {_LABEL}: {describe_classes(table.classes[''])}")
    splits = [attributes.pop(_SPLIT, None) for attributes in data]
    if data and all(isinstance(attributes.get(_TIME), Integral) for attributes in data):
        times = [attributes.pop(_TIME) for attributes in data]
        set_column(table, "times", np.array(times, np.int64), f"{where} {_TIME}")
    has_rows = any(row is not None for row in rows)
    names = sorted({name for attributes in data for name in attributes})
    numeric = [
        name
        for name in names
        if not has_rows and all(isinstance(attributes.get(name), Real) for attributes in data)
    ]
    left_out = [name for name in names if name not in numeric]
    if left_out:
        notes.append(
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
        set_column(table, "features", np.array(rows, np.float32), f"{where} {_FEATURES}")
    return splits
