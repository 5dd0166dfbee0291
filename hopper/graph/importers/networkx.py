"""Import a graph of NetworkX, or a GraphML file.

Attributes of nodes are ``features`` (a list of numbers, as long for every node), ``label`` (an
integer, or a text; texts are numbered in sorted order), ``split`` (a split's name) and ``time`` (an
integer). Without ``features``, other numbers become one column each, in order of name. Attributes
of edges are ``weight``, ``label``, ``split`` and ``time``; other numbers become edge features. If
only edges have labels, they are predicted. A note names attributes that are left out. Nodes are
numbered in the graph's order, and their names are stored with the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

import numpy as np

from hopper.errors import GraphError
from hopper.graph.importers.read_arrays import (
    describe_classes,
    number_texts,
    read_labels,
    read_weights,
)
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import Features, GraphTables, Table, array_features
from hopper.graph.schema import Relation

_NODE: Final = "node"
_EDGES: Final = Relation(_NODE, "edge", _NODE)
_FEATURES, _LABEL, _SPLIT, _WEIGHT, _TIME = "features", "label", "split", "weight", "time"


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
    ids = {node: number for number, node in enumerate(graph)}
    tables = GraphTables(name, f"NetworkX graph {Path(where).name}")
    pairs = [(ids[src], ids[dst]) for src, dst in graph.edges()]
    data = [dict(attributes) for _, _, attributes in graph.edges(data=True)]
    if not graph.is_directed():
        # A self-loop is its own reverse.
        reverses = [(edge, (dst, src)) for edge, (src, dst) in enumerate(pairs) if src != dst]
        data += [dict(data[edge]) for edge, _ in reverses]
        pairs += [pair for _, pair in reverses]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    edges = Table(len(ends), ends[:, 0].copy(), ends[:, 1].copy())
    edge_splits = _take_columns(edges, data, f"{where}: edge", tables.notes)
    weights = [attributes.pop(_WEIGHT, None) for attributes in data]
    if any(weight is not None for weight in weights):
        # In NetworkX, an edge without a weight has the weight 1.
        filled = [1.0 if weight is None else weight for weight in weights]
        edges.weights = read_weights(np.asarray(filled), f"{where}: {_WEIGHT} of edges")
    edges.features = _read_numbers(data, f"{where}: edge", tables.notes)
    node_data = [dict(graph.nodes[node]) for node in ids]
    nodes = Table(len(ids))
    node_splits = _take_columns(nodes, node_data, where, tables.notes)
    nodes.features = _take_features(node_data, where, tables.notes)
    if any(node != number for node, number in ids.items()):
        nodes.names = [str(node) for node in ids]
    tables.nodes[_NODE], tables.edges[_EDGES] = nodes, edges
    of_edges = edges.labels is not None and nodes.labels is None
    target, splits = (edges, edge_splits) if of_edges else (nodes, node_splits)
    tables.targets = (_EDGES if of_edges else _NODE,)
    target.splits = {
        split: np.array([row for row, name in enumerate(splits) if str(name) == split], np.int64)
        for split in sorted({str(name) for name in splits if name not in (None, "")})
    }
    return tables


def _take_columns(
    table: Table, data: Sequence[dict[str, Any]], where: str, notes: list[str]
) -> list[Any]:
    """Take labels, splits and times out of attributes, and return the splits.

    All nodes or edges must have a time, or none is taken.
    """
    labels = [attributes.pop(_LABEL, None) for attributes in data]
    known = [label for label in labels if label is not None]
    if known and all(isinstance(label, str) for label in known):
        table.labels, table.classes[""] = number_texts(labels)
        notes.append(f"{where}: {_LABEL}: {describe_classes(table.classes[''])}")
    elif known:
        if not all(isinstance(label, Real) for label in known):
            kinds = sorted({type(label).__name__ for label in known})
            raise GraphError(
                f"{where}: {_LABEL}: expected integers, numbers or texts, given {', '.join(kinds)}"
            )
        is_class = all(isinstance(label, Integral) for label in known)
        dtype, missing = (np.int64, -1) if is_class else (np.float32, np.nan)
        values = np.array([missing if label is None else label for label in labels], dtype)
        table.labels = read_labels(values, f"{where}: {_LABEL}")
    splits = [attributes.pop(_SPLIT, None) for attributes in data]
    if data and all(isinstance(attributes.get(_TIME), Integral) for attributes in data):
        table.times = np.array([attributes.pop(_TIME) for attributes in data], np.int64)
    return splits


def _take_features(
    nodes: Sequence[dict[str, Any]], where: str, notes: list[str]
) -> Features | None:
    rows = [attributes.pop(_FEATURES, None) for attributes in nodes]
    if all(row is None for row in rows):
        return _read_numbers(nodes, f"{where}: node", notes)
    _read_numbers(nodes, f"{where}: node", notes, wanted=False)
    rows = [row if hasattr(row, "__len__") else None for row in rows]
    width = next((len(row) for row in rows if row is not None), 0)
    for node, row in enumerate(rows):
        if row is None or len(row) != width:
            text = "nothing" if row is None else f"{len(row)} numbers"
            raise GraphError(
                f"{where}: {_FEATURES} of node {node}: expected {width} numbers, as others have, "
                f"given {text}"
            )
    return array_features(np.array(rows, np.float32))


def _read_numbers(
    data: Sequence[Mapping[str, Any]], where: str, notes: list[str], *, wanted: bool = True
) -> Features | None:
    """Return attributes that are numbers everywhere, a column each; a note names the others."""
    names = sorted({name for attributes in data for name in attributes})
    numeric = [
        name
        for name in names
        if wanted and all(isinstance(attributes.get(name), Real) for attributes in data)
    ]
    left_out = [name for name in names if name not in numeric]
    if left_out:
        notes.append(
            f"{where} attributes left out: {', '.join(left_out)} (no number, or not there "
            "everywhere)"
        )
    rows = [[attributes[name] for name in numeric] for attributes in data]
    return array_features(np.array(rows, np.float32)) if numeric else None
