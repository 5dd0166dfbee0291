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

from hopper.errors import GraphError
from hopper.graph.importers.read_arrays import as_array, fill_table, read_ends, take_masks
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import (
    GraphTables,
    Table,
    choose_target,
    count_nodes,
    read_relation,
)
from hopper.graph.layout import safe_name

_GLOBAL: Final = "_global_store"
_NODE, _EDGE = "node", "edge"
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
    """
    if hasattr(data, "to_dict"):
        data = data.to_dict()
    if not isinstance(data, Mapping):
        raise GraphError(f"{where}: expected a PyG Data or HeteroData, given {type(data).__name__}")
    stores = _stores(data, where)
    tables = GraphTables(name, f"PyG graph {Path(where).name}")
    relations = {key: dict(store) for key, store in stores.items() if isinstance(key, tuple)}
    for key, store in relations.items():
        _add_edges(tables, key, store, where)
    given = {key: dict(store) for key, store in stores.items() if isinstance(key, str)}
    others = {end for src, _, dst in relations for end in (src, dst)} - set(given)
    for node_type in [*given, *sorted(others)]:
        _add_nodes(tables, node_type, given.get(node_type, {}), where)
    choose_target(tables, where)
    return tables


def _add_edges(
    tables: GraphTables, key: tuple[str, str, str], store: dict[str, Any], where: str
) -> None:
    """Read a relation's table."""
    relation = read_relation(key, tables.edges, where)
    if store.get("edge_index") is None:
        raise GraphError(f"{where}: {relation}: edge_index: missing; given {sorted(store)}")
    field = f"{where}: {relation}: edge_index"
    table = tables.edges[relation] = read_ends(as_array(store.pop("edge_index"), field), field)
    keys = {"features": "edge_attr", "weights": "edge_weight"}
    # In a Data, the shorter name is that of the nodes' times.
    keys["times"] = "edge_time" if store.get("edge_time") is not None else "time"
    if "edge_label_index" not in store:
        # With an edge_label_index, the labels are those of other pairs of nodes.
        keys["labels"] = "edge_label"
    _fill(table, store, keys, where, str(relation), tables.notes)
    take_masks(table, store, where, str(relation), tables.notes)


def _add_nodes(tables: GraphTables, node_type: str, store: dict[str, Any], where: str) -> None:
    """Read a node type's table."""
    safe_type = safe_name(node_type)
    if safe_type in tables.nodes:
        raise GraphError(
            f"{where}: node type {node_type!r}: is {safe_type!r} as part of a path, twice"
        )
    table = tables.nodes[safe_type] = Table(0)
    count = store.pop("num_nodes", None)
    masks = {key: _length(store[key], where, key) for key in store if key.endswith("_mask")}
    keys = {"features": "x", "labels": "y", "times": "time"}
    _fill(table, store, keys, where, node_type, tables.notes)
    if count is not None:
        table.count = int(count)
    elif table.features is not None:
        table.count = table.features.shape[0]
    else:
        labels = 0 if table.labels is None else len(table.labels[1])
        table.count = max(count_nodes(tables, safe_type), labels, *masks.values(), 0)
        tables.notes.append(
            f"nodes of {node_type}: {table.count}, as many as edges and labels name"
        )
    take_masks(table, store, where, node_type, tables.notes)


def _fill(
    table: Table,
    store: dict[str, Any],
    keys: dict[str, str],
    where: str,
    owner: str,
    notes: list[str],
) -> None:
    """Read a table's columns; labels of several columns of 0 and 1 are several labels."""
    key = keys.get("labels", "")
    if store.get(key) is not None:
        values = as_array(store[key], f"{where}: {key} of {owner}")
        is_matrix = values.ndim == 2 and values.shape[1] > 1
        if is_matrix and np.issubdtype(values.dtype, np.floating) and np.isin(values, (0, 1)).all():
            # PyG keeps multi-hot labels as floats, as its loss takes them.
            notes.append(f"{key} of {owner}: all are 0 or 1, so they are taken for several labels")
            store[key] = values.astype(np.uint8)
    fill_table(table, store, keys, where, owner)


def _length(value: Any, where: str, key: str) -> int:
    array = as_array(value, f"{where}: {key}")
    if not array.ndim:
        raise GraphError(f"{where}: {key}: expected a row for each node or edge, given one number")
    return len(array)


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
            count = _length(value, where, key)
            is_edges = count == edge_count and count != _length(data["x"], where, "x")
        (edges if is_edges else nodes)[key] = value
    return {_NODE: nodes, (_NODE, _EDGE, _NODE): edges}
