"""Import a graph of PyTorch Geometric: a ``Data`` or ``HeteroData``, or a file that has one.

docs/howto/import.md says what is read. PyG itself is needed only for files that hold its classes.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from hopper.errors import GraphError
from hopper.graph.importers.arrays import EDGES, NODE, as_array, read_edges, take_data
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import GraphTables, Table, count_nodes, read_relation
from hopper.graph.layout import safe_name

_GLOBAL: Final = "_global_store"
_PLAIN_CLASSES: Final = {
    "data": ("Data", "DataEdgeAttr", "DataTensorAttr"),
    "hetero_data": ("HeteroData",),
    "storage": ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage"),
}
_PER_EDGE: Final = (
    *("edge_attr", "edge_weight", "edge_time", "edge_label", "edge_label_index", "edge_type"),
)


def read_pyg(file: Path) -> GraphTables:
    """Read a graph or a dataset of one that ``torch.save`` wrote, without executing anything."""
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
    """Load what ``torch.save`` wrote; PyG is imported only for files that name its classes."""
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
    """Return PyG's classes of which torch only sets attributes, if it is installed."""
    if importlib.util.find_spec("torch_geometric") is None:
        return []
    classes = []
    for module_name, names in _PLAIN_CLASSES.items():
        module = importlib.import_module(f"torch_geometric.data.{module_name}")
        classes += [getattr(module, name) for name in names if hasattr(module, name)]
    return classes


def _only_graph(dataset: tuple[Any, ...], file: Path) -> Any:
    """Return the only graph of a saved dataset: its data, bounds of each graph, and its class."""
    slices = dataset[1] if len(dataset) > 1 else None
    counts = {len(bounds) - 1 for bounds in _leaves(slices or {}) if hasattr(bounds, "__len__")}
    if counts - {1}:
        raise GraphError(f"{file}: expected a dataset of one graph, given {max(counts)} graphs")
    return dataset[0]


def _leaves(slices: Mapping[Any, Any]) -> Iterator[Any]:
    for value in slices.values():
        yield from _leaves(value) if isinstance(value, Mapping) else [value]


def tables_from_pyg(data: Any, name: str, where: str) -> GraphTables:
    """Convert a ``Data`` or a ``HeteroData``, or the result of its ``to_dict()``.

    A ``Data`` becomes a graph of node type "node" and relation node/edge/node.
    """
    if hasattr(data, "to_dict"):
        data = data.to_dict()
    if not isinstance(data, Mapping):
        raise GraphError(f"{where}: expected a PyG Data or HeteroData, given {type(data).__name__}")
    stores = {key: dict(store) for key, store in _stores(data, where).items()}
    tables = GraphTables(name, f"PyG graph {Path(where).name}")
    for key, store in stores.items():
        if isinstance(key, tuple):
            _add_edges(tables, key, store, where)
    ends = {end for key in stores if isinstance(key, tuple) for end in (key[0], key[2])}
    given = [key for key in stores if isinstance(key, str)]
    for node_type in [*given, *sorted(ends - {*given})]:
        _add_nodes(tables, node_type, stores.get(node_type, {}), where)
    tables.choose_target(where)
    return tables


def _add_edges(
    tables: GraphTables, key: tuple[str, str, str], store: dict[str, Any], where: str
) -> None:
    """Read a relation's table."""
    relation = read_relation(key, tables.edges, where)
    if store.get("edge_index") is None:
        raise GraphError(f"{where}: {relation}: edge_index: missing; given {sorted(store)}")
    ends = store.pop("edge_index")
    table = tables.edges[relation] = read_edges(ends, f"{where}: {relation}: edge_index")
    keys = {"features": "edge_attr", "weights": "edge_weight"}
    # In a Data, the shorter name is that of the nodes' times.
    keys["times"] = "edge_time" if store.get("edge_time") is not None else "time"
    if "edge_label_index" not in store:
        # With an edge_label_index, the labels are those of other pairs of nodes.
        keys["labels"] = "edge_label"
    _take(table, store, keys, where, relation, tables.notes)


def _add_nodes(tables: GraphTables, node_type: str, store: dict[str, Any], where: str) -> None:
    """Read a node type's table."""
    safe_type = safe_name(node_type)
    if safe_type in tables.nodes:
        raise GraphError(
            f"{where}: node type {node_type!r}: is {safe_type!r} as part of a path, twice"
        )
    count = store.pop("num_nodes", None)
    if count is None and store.get("x") is not None:
        count = _length(store["x"], where, "x")
    if count is None:
        counted = [key for key in store if key.endswith("_mask") or key == "y"]
        lengths = [_length(store[key], where, key) for key in counted if store[key] is not None]
        count = max(count_nodes(tables, safe_type), *lengths, 0)
        tables.notes.append(f"nodes of {node_type}: {count}, as many as edges and labels name")
    table = tables.nodes[safe_type] = Table(int(count))
    keys = {"features": "x", "labels": "y", "times": "time"}
    _take(table, store, keys, where, node_type, tables.notes)


def _take(
    table: Table,
    store: dict[str, Any],
    keys: dict[str, str],
    where: str,
    owner: object,
    notes: list[str],
) -> None:
    """Read a table's columns; labels of several columns of 0 and 1 are several labels."""
    key = keys.get("labels", "")
    values = store.get(key)
    if values is not None and not isinstance(values, list):
        array = as_array(values, f"{where}: {key} of {owner}")
        is_matrix = array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind == "f"
        if is_matrix and np.isin(array, (0, 1)).all():
            # PyG keeps multi-hot labels as floats, as its loss takes them.
            notes.append(f"{key} of {owner}: all are 0 or 1, so they are taken for several labels")
            store[key] = array.astype(np.uint8)
    take_data(table, store, keys, where, owner, notes)


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
    return {NODE: nodes, EDGES: edges}
