"""Import a graph of PyTorch Geometric: a ``Data`` or ``HeteroData``, or a file that has one.

Read are ``x``, ``y``, ``time``, ``edge_index``, ``edge_attr``, ``edge_weight``, ``edge_time`` (or
``time`` of a relation), ``edge_label`` where it has a row for each edge, and boolean masks
``<split>_mask`` on nodes or on the edges of one relation; other attributes are named in a note and
left out. PyG itself is needed only to read files that hold its classes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.attributes import (
    Masks,
    as_array,
    choose_target,
    take_features,
    take_masks,
)
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import (
    GraphTables,
    edge_ids_array,
    read_labels,
    read_relation,
    read_times,
    read_weights,
)
from hopper.graph.layout import safe_name
from hopper.graph.schema import Labels, Relation

_GLOBAL: Final = "_global_store"
_NODE, _EDGE = "node", "edge"
_EDGE_LABEL: Final = "edge_label"
_PLAIN_CLASSES: Final = {
    "data": ("Data", "DataEdgeAttr", "DataTensorAttr"),
    "hetero_data": ("HeteroData",),
    "storage": ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage"),
}
_PER_EDGE: Final = (
    *("edge_attr", "edge_weight", "edge_time", "edge_label", "edge_label_index", "edge_type"),
)


def read_pyg(file: Path) -> GraphTables:
    """Read a file of ``torch.save``: a ``Data``, a ``HeteroData``, what ``to_dict()`` makes of
    one, or the ``processed/data.pt`` of a dataset with one graph. Nothing in it is executed.

    Raises
    ------
    GraphError: the file is missing, holds something else, or needs classes that are not safe.
    """
    import torch

    require_file(file, "saved graph")
    try:
        with torch.serialization.safe_globals(_plain_classes()):
            found = torch.load(file, map_location="cpu", weights_only=True)
    # torch tells of damaged files in many ways.
    except Exception as error:
        raise GraphError(
            f"{file}: torch cannot read it without unpickling ({first_line(error)}); expected a "
            "Data or HeteroData where torch_geometric is installed, or torch.save(data.to_dict(), "
            "FILE)"
        ) from error
    if isinstance(found, tuple):
        found = _only_graph(found, file)
    return tables_from_pyg(found, file.stem, str(file))


def _plain_classes() -> list[Any]:
    """PyG's classes that hold attributes and nothing else, where it is installed: torch makes them
    and sets these, and executes nothing."""
    if importlib.util.find_spec("torch_geometric") is None:
        return []
    found = []
    for module, names in _PLAIN_CLASSES.items():
        home = importlib.import_module(f"torch_geometric.data.{module}")
        found += [getattr(home, name) for name in names if hasattr(home, name)]
    return found


def _only_graph(found: tuple[Any, ...], file: Path) -> Any:
    """The graph of what a dataset has saved: its data, where each graph begins, its class."""
    slices = found[1] if len(found) > 1 else None
    if not slices:
        return found[0]
    counts = {len(each) - 1 for each in _leaves(slices) if hasattr(each, "__len__")}
    if counts - {1}:
        raise GraphError(f"{file}: expected a dataset of one graph, given {max(counts)} graphs")
    return found[0]


def _leaves(slices: Mapping[Any, Any]) -> list[Any]:
    found: list[Any] = []
    for each in slices.values():
        found += _leaves(each) if isinstance(each, Mapping) else [each]
    return found


def tables_from_pyg(data: Any, name: str, where: str) -> GraphTables:
    """Convert a ``Data`` or a ``HeteroData``, or what its ``to_dict()`` returns.

    A ``Data`` becomes a graph of node type "node" and relation node/edge/node.

    Raises
    ------
    GraphError: it is something else, the target is not clear, or an attribute has a dtype or shape
        that is not understood; names it.
    """
    if hasattr(data, "to_dict"):
        data = data.to_dict()
    if not isinstance(data, Mapping):
        raise GraphError(f"{where}: expected a PyG Data or HeteroData, given {type(data).__name__}")
    stores = _stores(data, where)
    tables = GraphTables(name, f"PyG graph {Path(where).name}", "", {}, {})
    masks: dict[str | Relation, Masks] = {}
    edges = {key: dict(own) for key, own in stores.items() if isinstance(key, tuple)}
    ends = {key: _edge_index(own, where, "/".join(key)) for key, own in edges.items()}
    for key, own in stores.items():
        if isinstance(key, str):
            known = safe_name(key)
            masks[known] = _read_nodes(tables, key, dict(own), _most(ends, key), where)
    for key in sorted({end for src, _, dst in ends for end in (src, dst)}):
        if safe_name(key) not in tables.counts:
            masks[safe_name(key)] = _read_nodes(tables, key, {}, _most(ends, key), where)
    for key, own in edges.items():
        relation = read_relation(*key, tables.edges, where)
        tables.edges[relation] = ends[key]
        own.pop("edge_index")
        if (features := take_features(own, "edge_attr", where, str(relation))) is not None:
            tables.edge_features[relation] = features
        if own.get("edge_weight") is not None:
            told = f"{where}: edge_weight of {relation}"
            weights = as_array(own.pop("edge_weight"), told)
            tables.weights[relation] = read_weights(weights, told)
        # A Data has its nodes' times under the shorter name.
        name = "edge_time" if own.get("edge_time") is not None else "time"
        if own.get(name) is not None:
            told = f"{where}: {name} of {relation}"
            tables.times[relation] = read_times(as_array(own.pop(name), told), told)
        if own.get(_EDGE_LABEL) is not None and "edge_label_index" not in own:
            # Beside an edge_label_index they are those of other pairs of nodes.
            values = as_array(own.pop(_EDGE_LABEL), f"{where}: {_EDGE_LABEL} of {relation}")
            tables.labels[relation] = _read_labels(values, str(relation), where, tables.notes)
        masks[relation] = take_masks(own, where, str(relation), len(ends[key][0]), tables.notes)
    choose_target(tables, masks, where)
    return tables


def _stores(data: Mapping[Any, Any], where: str) -> dict[str | tuple[str, str, str], Any]:
    """Attributes by node type and by relation."""
    if "adj_t" in data or any(isinstance(own, Mapping) and "adj_t" in own for own in data.values()):
        raise GraphError(
            f"{where}: adj_t: a sparse matrix of another library; expected edge_index (leave out "
            "the transform ToSparseTensor)"
        )
    if any(isinstance(key, tuple) for key in data):
        return {key: own for key, own in data.items() if key != _GLOBAL}
    if "edge_index" not in data:
        raise GraphError(f"{where}: edge_index: missing; given {sorted(map(str, data))}")
    edge_count = as_array(data["edge_index"], f"{where}: edge_index").shape[-1]
    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    for key, value in data.items():
        is_edges = key == "edge_index" or key in _PER_EDGE
        if key.endswith("_mask") and "x" in data:
            # Masks of edges are told by their length, where nodes are counted otherwise.
            count = _length(value, f"{where}: {key}")
            is_edges = count == edge_count and count != _length(data["x"], f"{where}: x")
        (edges if is_edges else nodes)[key] = value
    return {_NODE: nodes, (_NODE, _EDGE, _NODE): edges}


def _edge_index(
    own: Mapping[str, Any], where: str, relation: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    if own.get("edge_index") is None:
        raise GraphError(f"{where}: {relation}: edge_index: missing; given {sorted(own)}")
    index = as_array(own["edge_index"], f"{where}: {relation}: edge_index")
    if index.ndim != 2 or index.shape[0] != 2 or not np.issubdtype(index.dtype, np.integer):
        raise GraphError(
            f"{where}: {relation}: edge_index: expected integers of shape [2, edges], given "
            f"{index.dtype} of shape {list(index.shape)}"
        )
    return edge_ids_array(index[0]), edge_ids_array(index[1])


def _most(
    ends: Mapping[tuple[str, str, str], tuple[NDArray[Any], NDArray[Any]]], node_type: str
) -> int:
    """One more than the largest id of a type that any edge names."""
    named = [
        int(ids.max()) + 1
        for (src, _, dst), both in ends.items()
        for end, ids in zip((src, dst), both, strict=True)
        if end == node_type and ids.size
    ]
    return max(named, default=0)


def _read_nodes(
    tables: GraphTables, node_type: str, own: dict[str, Any], most: int, where: str
) -> Masks:
    """Take a type's count, features and labels; returns its masks."""
    known = safe_name(node_type)
    if known in tables.counts:
        raise GraphError(f"{where}: node type {node_type!r}: is {known!r} as part of a path, twice")
    features = take_features(own, "x", where, node_type)
    told = own.pop("num_nodes", None)
    if told is not None:
        count = int(told)
    elif features is not None:
        count = features.shape[0]
    else:
        sized = [key for key in own if key == "y" or key.endswith("_mask")]
        lengths = [_length(own[key], f"{where}: {key} of {node_type}") for key in sized]
        count = max([most, *lengths])
        tables.notes.append(f"nodes of {node_type}: {count}, as many as edges and labels name")
    tables.counts[known] = count
    if features is not None:
        tables.features[known] = features
    if own.get("time") is not None:
        told_times = f"{where}: time of {node_type}"
        tables.times[known] = read_times(as_array(own.pop("time"), told_times), told_times)
    if own.get("y") is not None:
        labels = as_array(own.pop("y"), f"{where}: y of {node_type}")
        tables.labels[known] = _read_labels(labels, node_type, where, tables.notes)
    return take_masks(own, where, node_type, count, tables.notes)


def _length(value: Any, where: str) -> int:
    found = as_array(value, where)
    if not found.ndim:
        raise GraphError(f"{where}: expected a row for each node or edge, given one number")
    return len(found)


def _read_labels(
    values: NDArray[Any], node_type: str, where: str, notes: list[str]
) -> tuple[Labels, NDArray[Any]]:
    is_table = values.ndim == 2 and values.shape[1] > 1
    if is_table and np.issubdtype(values.dtype, np.floating) and np.isin(values, (0, 1)).all():
        # For its loss PyG keeps several labels as floats.
        notes.append(f"y of {node_type}: all are 0 or 1, so they are taken for several labels")
        values = values.astype(np.uint8)
    return read_labels(values, f"{where}: y of {node_type}")
