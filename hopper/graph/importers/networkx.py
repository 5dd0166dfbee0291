"""Import a graph of NetworkX, or a GraphML file.

Attributes of nodes: ``features`` (a list of numbers of one length) or any other numbers, one column
each, in order of name; ``label`` (an integer, or a text, which is numbered in order); ``split`` (a
split's name). Of edges: ``label`` and ``split`` likewise, which say that edges are predicted where
no node has any, ``weight``, and other numbers, one column of edge features each. ``time`` of nodes
or edges, an integer everywhere, is their time. What else there is is named in a note. Nodes are
numbered in the graph's order, and their names kept beside the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.feature_columns import number_texts, told_classes
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
    # Damaged files are told of in many ways.
    except Exception as error:
        raise GraphError(f"{file}: not readable as GraphML: {first_line(error)}") from error
    return tables_from_networkx(graph, file.stem, str(file))


def tables_from_networkx(graph: Any, name: str, where: str) -> GraphTables:
    """Convert a ``networkx`` graph of one node type; an edge without direction becomes two.

    Raises
    ------
    GraphError: an attribute is not what it should be; names node and attribute.
    """
    places = {node: place for place, node in enumerate(graph)}
    tables = GraphTables(
        name, f"NetworkX graph {Path(where).name}", _NODE, {_NODE: len(places)}, {}
    )
    pairs = [(places[src], places[dst]) for src, dst in graph.edges()]
    data = [dict(own) for _, _, own in graph.edges(data=True)]
    if not graph.is_directed():
        # A loop is one edge either way.
        back = [(place, (dst, src)) for place, (src, dst) in enumerate(pairs) if src != dst]
        data += [dict(data[place]) for place, _ in back]
        pairs += [pair for _, pair in back]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    tables.edges[_EDGES] = ends[:, 0].copy(), ends[:, 1].copy()
    edge_splits = _take_labels(tables, _EDGES, data, f"{where}: edge")
    weights = [own.pop(_WEIGHT, None) for own in data]
    if any(each is not None for each in weights):
        # NetworkX takes an edge without one to weigh 1.
        filled = [1.0 if each is None else each for each in weights]
        told = f"{where}: {_WEIGHT} of edges"
        tables.weights[_EDGES] = read_weights(np.asarray(filled), told)
    _take_times(tables, _EDGES, data)
    columns = _columns(data, f"{where}: edge", tables.notes)
    if columns is not None:
        tables.edge_features[_EDGES] = ArrayFeatures(columns)
    nodes = [dict(graph.nodes[node]) for node in places]
    splits = _take_labels(tables, _NODE, nodes, where)
    _take_times(tables, _NODE, nodes)
    features = _node_features(nodes, where, tables.notes)
    if features is not None:
        tables.features[_NODE] = ArrayFeatures(features)
    if _EDGES in tables.labels and _NODE not in tables.labels:
        tables.target, splits = _EDGES, edge_splits
    for split in sorted({str(each) for each in splits if each not in (None, "")}):
        found = [place for place, each in enumerate(splits) if str(each) == split]
        tables.splits[split] = np.array(found, np.int64)
    if any(node != place for node, place in places.items()):
        tables.names[_NODE] = [str(node) for node in places]
    return tables


def _take_labels(
    tables: GraphTables, owner: Labelled, owners: Sequence[dict[str, Any]], where: str
) -> list[Any]:
    """Take the labels of nodes or edges out of their attributes; returns their splits."""
    labels = [own.pop(_LABEL, None) for own in owners]
    if any(label is not None for label in labels):
        values, names = _label_values(labels, where)
        if names:
            tables.label_names[owner] = names
            tables.notes.append(f"{where}: {_LABEL}: {told_classes(names)}")
        tables.labels[owner] = read_labels(values, f"{where}: {_LABEL}")
    return [own.pop(_SPLIT, None) for own in owners]


def _take_times(tables: GraphTables, owner: Labelled, owners: Sequence[dict[str, Any]]) -> None:
    """Take the times of nodes or edges out of their attributes, where all have one."""
    if owners and all(isinstance(own.get(_TIME), Integral) for own in owners):
        tables.times[owner] = np.array([own.pop(_TIME) for own in owners], np.int64)


def _node_features(
    nodes: Sequence[dict[str, Any]], where: str, notes: list[str]
) -> NDArray[Any] | None:
    lists = [own.pop(_FEATURES, None) for own in nodes]
    if all(each is None for each in lists):
        return _columns(nodes, f"{where}: node", notes)
    _columns(nodes, f"{where}: node", notes, wanted=False)
    lists = [each if hasattr(each, "__len__") else None for each in lists]
    width = next((len(each) for each in lists if each is not None), 0)
    for place, each in enumerate(lists):
        if each is None or len(each) != width:
            given = "nothing" if each is None else f"{len(each)} numbers"
            raise GraphError(
                f"{where}: {_FEATURES} of node {place}: expected {width} numbers, as others have, "
                f"given {given}"
            )
    return np.array(lists, np.float32)


def _columns(
    owners: Sequence[Mapping[str, Any]], where: str, notes: list[str], *, wanted: bool = True
) -> NDArray[Any] | None:
    """[n, columns] float32: attributes that are numbers everywhere; others are noted."""
    names = sorted({name for own in owners for name in own})
    taken = [
        name for name in names if wanted and all(isinstance(own.get(name), Real) for own in owners)
    ]
    left = [name for name in names if name not in taken]
    if left:
        notes.append(
            f"{where} attributes left out: {', '.join(left)} (no number, or not there everywhere)"
        )
    if not taken:
        return None
    return np.array([[own[name] for name in taken] for own in owners], np.float32)


def _label_values(labels: Sequence[Any], where: str) -> tuple[NDArray[Any], list[str]]:
    """Labels as numbers, and what classes are called that have none."""
    known = [label for label in labels if label is not None]
    if all(isinstance(label, Integral) for label in known):
        return np.array([-1 if label is None else int(label) for label in labels], np.int64), []
    if all(isinstance(label, Real) for label in known):
        return np.array([np.nan if label is None else label for label in labels], np.float32), []
    if not all(isinstance(label, str) for label in known):
        kinds = sorted({type(label).__name__ for label in known})
        raise GraphError(
            f"{where}: {_LABEL}: expected integers, numbers or texts, given {', '.join(kinds)}"
        )
    return number_texts(labels)
