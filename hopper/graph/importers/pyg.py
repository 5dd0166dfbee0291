"""Import a graph of PyTorch Geometric: a ``Data`` or ``HeteroData``, or a file that has one.

This reads ``x``, ``y``, ``time``, ``edge_index``, ``edge_attr``, ``edge_weight``, ``edge_time`` (or
``time`` of a relation), ``edge_label`` if it has a row for each edge, and boolean masks
``<split>_mask`` on nodes or on the edges of one relation. A note names other attributes, which are
left out. PyG itself is needed only to read files that hold its classes.
"""

from __future__ import annotations

import importlib.util
import re
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
    """Read a graph that ``torch.save`` wrote, without executing anything in the file.

    The file holds a ``Data``, a ``HeteroData``, the result of ``to_dict()`` of either, or the
    dataset of one graph that PyG keeps as ``processed/data.pt``.

    Raises
    ------
    GraphError: the file is missing, holds something else, or needs classes that are not safe.
    """
    require_file(file, "saved graph")
    try:
        content = _load(file)
    # torch raises many kinds of errors for damaged files.
    except Exception as error:
        raise GraphError(
            f"{file}: torch cannot read it without unpickling: {_explain_refusal(error)}"
        ) from error
    if isinstance(content, tuple):
        content = _only_graph(content, file)
    return tables_from_pyg(content, file.stem, str(file))


def _load(file: Path) -> Any:
    """Load what ``torch.save`` wrote.

    Importing PyG takes seconds, so it is imported only for files that name its classes.
    """
    import torch

    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        if "torch_geometric" not in str(error):
            raise
    with torch.serialization.safe_globals(_plain_classes()):
        return torch.load(file, map_location="cpu", weights_only=True)


def _explain_refusal(error: Exception) -> str:
    """Say in one line what torch refuses to read, and what to save instead."""
    text = str(error)
    if not (refused := re.search(r"GLOBAL (\S+)", text)):
        reason = re.search(r"WeightsUnpickler error: (.*)", text)
        return f"{reason[1] if reason else first_line(error)}; expected a file of torch.save"
    name = refused[1]
    if name.startswith("numpy"):
        return (
            "it holds NumPy's data; save numbers as tensors (torch.from_numpy(array)), and texts "
            "as lists (array.tolist()), or leave them out"
        )
    if name.startswith("torch_geometric"):
        return f"it holds {name}; install torch_geometric, or torch.save(data.to_dict(), FILE)"
    return f"it names {name}; expected tensors, numbers, texts, and lists and dictionaries of them"


def _plain_classes() -> list[Any]:
    """Return PyG's classes that only hold attributes, if it is installed.

    torch makes their objects and sets the attributes, and executes nothing.
    """
    if importlib.util.find_spec("torch_geometric") is None:
        return []
    classes = []
    for module_name, names in _PLAIN_CLASSES.items():
        module = importlib.import_module(f"torch_geometric.data.{module_name}")
        classes += [getattr(module, name) for name in names if hasattr(module, name)]
    return classes


def _only_graph(dataset: tuple[Any, ...], file: Path) -> Any:
    """Return the only graph of a saved dataset, which has data, bounds of each graph, and its
    class."""
    slices = dataset[1] if len(dataset) > 1 else None
    if not slices:
        return dataset[0]
    counts = {len(bounds) - 1 for bounds in _leaves(slices) if hasattr(bounds, "__len__")}
    if counts - {1}:
        raise GraphError(f"{file}: expected a dataset of one graph, given {max(counts)} graphs")
    return dataset[0]


def _leaves(slices: Mapping[Any, Any]) -> list[Any]:
    leaves: list[Any] = []
    for value in slices.values():
        leaves += _leaves(value) if isinstance(value, Mapping) else [value]
    return leaves


def tables_from_pyg(data: Any, name: str, where: str) -> GraphTables:
    """Convert a ``Data`` or a ``HeteroData``, or the result of its ``to_dict()``.

    A ``Data`` becomes a graph of node type "node" and relation node/edge/node.

    Raises
    ------
    GraphError: it is something else, the target is not clear, or an attribute has a wrong dtype or
        shape. The text names it.
    """
    if hasattr(data, "to_dict"):
        data = data.to_dict()
    if not isinstance(data, Mapping):
        raise GraphError(f"{where}: expected a PyG Data or HeteroData, given {type(data).__name__}")
    stores = _stores(data, where)
    tables = GraphTables(name, f"PyG graph {Path(where).name}", "", {}, {})
    masks: dict[str | Relation, Masks] = {}
    edges = {key: dict(store) for key, store in stores.items() if isinstance(key, tuple)}
    ends = {key: _edge_index(store, where, "/".join(key)) for key, store in edges.items()}
    for key, store in stores.items():
        if isinstance(key, str):
            safe_type = safe_name(key)
            masks[safe_type] = _read_nodes(tables, key, dict(store), _count_nodes(ends, key), where)
    for key in sorted({end for src, _, dst in ends for end in (src, dst)}):
        if safe_name(key) not in tables.counts:
            masks[safe_name(key)] = _read_nodes(tables, key, {}, _count_nodes(ends, key), where)
    for key, store in edges.items():
        relation = read_relation(*key, tables.edges, where)
        tables.edges[relation] = ends[key]
        store.pop("edge_index")
        if (features := take_features(store, "edge_attr", where, str(relation))) is not None:
            tables.edge_features[relation] = features
        if store.get("edge_weight") is not None:
            field = f"{where}: edge_weight of {relation}"
            weights = as_array(store.pop("edge_weight"), field)
            tables.weights[relation] = read_weights(weights, field)
        # In a Data, the shorter name is that of the nodes' times.
        name = "edge_time" if store.get("edge_time") is not None else "time"
        if store.get(name) is not None:
            field = f"{where}: {name} of {relation}"
            tables.times[relation] = read_times(as_array(store.pop(name), field), field)
        if store.get(_EDGE_LABEL) is not None and "edge_label_index" not in store:
            # With an edge_label_index, the labels are those of other pairs of nodes.
            values = as_array(store.pop(_EDGE_LABEL), f"{where}: {_EDGE_LABEL} of {relation}")
            tables.labels[relation] = _read_labels(values, str(relation), where, tables.notes)
        masks[relation] = take_masks(store, where, str(relation), len(ends[key][0]), tables.notes)
    choose_target(tables, masks, where)
    return tables


def _stores(data: Mapping[Any, Any], where: str) -> dict[str | tuple[str, str, str], Any]:
    """Divide the attributes by node type and by relation."""
    has_adjacency = any(isinstance(store, Mapping) and "adj_t" in store for store in data.values())
    if "adj_t" in data or has_adjacency:
        raise GraphError(
            f"{where}: adj_t: a sparse matrix of another library; expected edge_index (leave out "
            "the transform ToSparseTensor)"
        )
    if any(isinstance(key, tuple) for key in data):
        return {key: store for key, store in data.items() if key != _GLOBAL}
    if "edge_index" not in data:
        raise GraphError(f"{where}: edge_index: missing; given {sorted(map(str, data))}")
    edge_count = as_array(data["edge_index"], f"{where}: edge_index").shape[-1]
    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    for key, value in data.items():
        is_edges = key == "edge_index" or key in _PER_EDGE
        if key.endswith("_mask") and "x" in data:
            # The length of a mask tells whether it is of edges, unless there are as many nodes.
            count = _length(value, f"{where}: {key}")
            is_edges = count == edge_count and count != _length(data["x"], f"{where}: x")
        (edges if is_edges else nodes)[key] = value
    return {_NODE: nodes, (_NODE, _EDGE, _NODE): edges}


def _edge_index(
    store: Mapping[str, Any], where: str, relation: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    if store.get("edge_index") is None:
        raise GraphError(f"{where}: {relation}: edge_index: missing; given {sorted(store)}")
    index = as_array(store["edge_index"], f"{where}: {relation}: edge_index")
    if index.ndim != 2 or index.shape[0] != 2 or not np.issubdtype(index.dtype, np.integer):
        raise GraphError(
            f"{where}: {relation}: edge_index: expected integers of shape [2, edges], given "
            f"{index.dtype} of shape {list(index.shape)}"
        )
    return edge_ids_array(index[0]), edge_ids_array(index[1])


def _count_nodes(
    ends: Mapping[tuple[str, str, str], tuple[NDArray[Any], NDArray[Any]]], node_type: str
) -> int:
    """Return one more than the largest id of a type that any edge names."""
    counts = [
        int(ids.max()) + 1
        for (src, _, dst), end_ids in ends.items()
        for end, ids in zip((src, dst), end_ids, strict=True)
        if end == node_type and ids.size
    ]
    return max(counts, default=0)


def _read_nodes(
    tables: GraphTables, node_type: str, store: dict[str, Any], least: int, where: str
) -> Masks:
    """Read a type's count, features, times and labels, and return its masks.

    Parameters
    ----------
    least: number of nodes that edges name.
    """
    safe_type = safe_name(node_type)
    if safe_type in tables.counts:
        raise GraphError(
            f"{where}: node type {node_type!r}: is {safe_type!r} as part of a path, twice"
        )
    features = take_features(store, "x", where, node_type)
    stored_count = store.pop("num_nodes", None)
    if stored_count is not None:
        count = int(stored_count)
    elif features is not None:
        count = features.shape[0]
    else:
        keys = [key for key in store if key == "y" or key.endswith("_mask")]
        lengths = [_length(store[key], f"{where}: {key} of {node_type}") for key in keys]
        count = max([least, *lengths])
        tables.notes.append(f"nodes of {node_type}: {count}, as many as edges and labels name")
    tables.counts[safe_type] = count
    if features is not None:
        tables.features[safe_type] = features
    if store.get("time") is not None:
        field = f"{where}: time of {node_type}"
        tables.times[safe_type] = read_times(as_array(store.pop("time"), field), field)
    if store.get("y") is not None:
        labels = as_array(store.pop("y"), f"{where}: y of {node_type}")
        tables.labels[safe_type] = _read_labels(labels, node_type, where, tables.notes)
    return take_masks(store, where, node_type, count, tables.notes)


def _length(value: Any, where: str) -> int:
    array = as_array(value, where)
    if not array.ndim:
        raise GraphError(f"{where}: expected a row for each node or edge, given one number")
    return len(array)


def _read_labels(
    values: NDArray[Any], node_type: str, where: str, notes: list[str]
) -> tuple[Labels, NDArray[Any]]:
    is_table = values.ndim == 2 and values.shape[1] > 1
    if is_table and np.issubdtype(values.dtype, np.floating) and np.isin(values, (0, 1)).all():
        # PyG keeps multi-hot labels as floats, as its loss takes them.
        notes.append(f"y of {node_type}: all are 0 or 1, so they are taken for several labels")
        values = values.astype(np.uint8)
    return read_labels(values, f"{where}: y of {node_type}")
