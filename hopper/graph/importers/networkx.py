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
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.feature_columns import describe_classes, number_texts
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import (
    ArrayFeatures,
    GraphTables,
    read_labels,
    read_weights,
)
from hopper.graph.schema import Labelled, Relation

_NODE: Final = "node"
_EDGES: Final = Relation(_NODE, "edge", _NODE)
_FEATURES, _LABEL, _SPLIT, _WEIGHT, _TIME = "features", "label", "split", "weight", "time"


def read_graphml(file: Path) -> GraphTables:
    """Read a GraphML file.

    Raises
    ------
    GraphError: the file is missing, or is not GraphML.
    """
    import networkx

    require_file(file, "GraphML")
    try:
        graph = networkx.read_graphml(file)
    # The library raises many kinds of errors for damaged files.
    except Exception as error:
        raise GraphError(f"{file}: not readable as GraphML: {first_line(error)}") from error
    return tables_from_networkx(graph, file.stem, str(file))


def tables_from_networkx(graph: Any, name: str, where: str) -> GraphTables:
    """Convert a ``networkx`` graph of one node type; an undirected edge becomes two.

    Raises
    ------
    GraphError: an attribute has a wrong type. The text names node and attribute.
    """
    ids = {node: number for number, node in enumerate(graph)}
    tables = GraphTables(name, f"NetworkX graph {Path(where).name}", _NODE, {_NODE: len(ids)}, {})
    pairs = [(ids[src], ids[dst]) for src, dst in graph.edges()]
    data = [dict(attributes) for _, _, attributes in graph.edges(data=True)]
    if not graph.is_directed():
        # A self-loop is its own reverse.
        reverses = [(edge, (dst, src)) for edge, (src, dst) in enumerate(pairs) if src != dst]
        data += [dict(data[edge]) for edge, _ in reverses]
        pairs += [pair for _, pair in reverses]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    tables.edges[_EDGES] = ends[:, 0].copy(), ends[:, 1].copy()
    edge_splits = _take_labels(tables, _EDGES, data, f"{where}: edge")
    weights = [attributes.pop(_WEIGHT, None) for attributes in data]
    if any(weight is not None for weight in weights):
        # In NetworkX, an edge without a weight has the weight 1.
        filled = [1.0 if weight is None else weight for weight in weights]
        tables.weights[_EDGES] = read_weights(np.asarray(filled), f"{where}: {_WEIGHT} of edges")
    _take_times(tables, _EDGES, data)
    columns = _read_columns(data, f"{where}: edge", tables.notes)
    if columns is not None:
        tables.edge_features[_EDGES] = ArrayFeatures(columns)
    nodes = [dict(graph.nodes[node]) for node in ids]
    splits = _take_labels(tables, _NODE, nodes, where)
    _take_times(tables, _NODE, nodes)
    features = _take_features(nodes, where, tables.notes)
    if features is not None:
        tables.features[_NODE] = ArrayFeatures(features)
    if _EDGES in tables.labels and _NODE not in tables.labels:
        tables.target, splits = _EDGES, edge_splits
    for split in sorted({str(name) for name in splits if name not in (None, "")}):
        rows = [row for row, name in enumerate(splits) if str(name) == split]
        tables.splits[split] = np.array(rows, np.int64)
    if any(node != number for node, number in ids.items()):
        tables.names[_NODE] = [str(node) for node in ids]
    return tables


def _take_labels(
    tables: GraphTables, owner: Labelled, data: Sequence[dict[str, Any]], where: str
) -> list[Any]:
    """Take labels and splits out of the attributes of nodes or edges, and return the splits."""
    labels = [attributes.pop(_LABEL, None) for attributes in data]
    if any(label is not None for label in labels):
        values, names = _number_labels(labels, where)
        if names:
            tables.label_names[owner] = names
            tables.notes.append(f"{where}: {_LABEL}: {describe_classes(names)}")
        tables.labels[owner] = read_labels(values, f"{where}: {_LABEL}")
    return [attributes.pop(_SPLIT, None) for attributes in data]


def _take_times(tables: GraphTables, owner: Labelled, data: Sequence[dict[str, Any]]) -> None:
    """Take the times of nodes or edges out of their attributes, if all have one."""
    if data and all(isinstance(attributes.get(_TIME), Integral) for attributes in data):
        times = [attributes.pop(_TIME) for attributes in data]
        tables.times[owner] = np.array(times, np.int64)


def _take_features(
    nodes: Sequence[dict[str, Any]], where: str, notes: list[str]
) -> NDArray[Any] | None:
    rows = [attributes.pop(_FEATURES, None) for attributes in nodes]
    if all(row is None for row in rows):
        return _read_columns(nodes, f"{where}: node", notes)
    _read_columns(nodes, f"{where}: node", notes, wanted=False)
    rows = [row if hasattr(row, "__len__") else None for row in rows]
    width = next((len(row) for row in rows if row is not None), 0)
    for node, row in enumerate(rows):
        if row is None or len(row) != width:
            text = "nothing" if row is None else f"{len(row)} numbers"
            raise GraphError(
                f"{where}: {_FEATURES} of node {node}: expected {width} numbers, as others have, "
                f"given {text}"
            )
    return np.array(rows, np.float32)


def _read_columns(
    data: Sequence[Mapping[str, Any]], where: str, notes: list[str], *, wanted: bool = True
) -> NDArray[Any] | None:
    """Return [n, columns] float32: attributes that are numbers everywhere; a note names the
    others."""
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
    if not numeric:
        return None
    return np.array([[attributes[name] for name in numeric] for attributes in data], np.float32)


def _number_labels(labels: Sequence[Any], where: str) -> tuple[NDArray[Any], list[str]]:
    """Convert labels to numbers; return them, and the names of classes that were texts."""
    known_labels = [label for label in labels if label is not None]
    if all(isinstance(label, Integral) for label in known_labels):
        return np.array([-1 if label is None else int(label) for label in labels], np.int64), []
    if all(isinstance(label, Real) for label in known_labels):
        return np.array([np.nan if label is None else label for label in labels], np.float32), []
    if not all(isinstance(label, str) for label in known_labels):
        kinds = sorted({type(label).__name__ for label in known_labels})
        raise GraphError(
            f"{where}: {_LABEL}: expected integers, numbers or texts, given {', '.join(kinds)}"
        )
    return number_texts(labels)
