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
from hopper.graph.importers.arrays import EDGES, NODE, TableReader, as_array
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.tables import GraphTables

_GLOBAL: Final = "_global_store"
_PLAIN_CLASSES: Final = {
    "data": ("Data", "DataEdgeAttr", "DataTensorAttr"),
    "hetero_data": ("HeteroData",),
    "storage": ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage"),
}
_KEYS: Final = {"features": "x", "labels": "y", "times": "time"}
_KEYS_OF_EDGES: Final = {"features": "edge_attr", "weights": "edge_weight"}
_PER_EDGE: Final = (
    "edge_attr",
    "edge_weight",
    "edge_time",
    "edge_label",
    "edge_label_index",
    "edge_type",
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
        # A saved dataset: its data, the bounds of each graph, and its class.
        slices = content[1] if len(content) > 1 else None
        counts = {len(bounds) - 1 for bounds in _leaves(slices or {}) if hasattr(bounds, "__len__")}
        if counts - {1}:
            raise GraphError(f"{file}: expected a dataset of one graph, given {max(counts)} graphs")
        content = content[0]
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
    reader = TableReader(name, f"PyG graph {Path(where).name}", where)
    tables, stores = reader.tables, _stores(data, where)
    triples = [key for key in stores if isinstance(key, tuple)]
    for triple in triples:
        store = dict(stores[triple])
        if store.get("edge_index") is None:
            raise GraphError(f"{where}: {triple}: edge_index: missing; given {sorted(store)}")
        # In a Data, the shorter name is that of the nodes' times.
        time = "edge_time" if store.get("edge_time") is not None else "time"
        keys = {**_KEYS_OF_EDGES, "times": time}
        if "edge_label_index" not in store:
            # With an edge_label_index, the labels are those of other pairs of nodes.
            keys["labels"] = "edge_label"
            _mark_several_labels(store, "edge_label", triple, reader)
        reader.add_edges(triple, store.pop("edge_index"), store, keys)
    ends = {end for triple in triples for end in (triple[0], triple[2])}
    given = [key for key in stores if isinstance(key, str)]
    for node_type in [*given, *sorted(ends - {*given})]:
        store = dict(stores.get(node_type, {}))
        count = store.pop("num_nodes", None)
        _mark_several_labels(store, "y", node_type, reader)
        table = reader.add_nodes(node_type, store, _KEYS, None if count is None else int(count))
        if count is None and table.features is None:
            note = f"nodes of {node_type}: {table.count}, as many as edges and labels name"
            tables.notes.append(note)
    tables.choose_target(where)
    return tables


def _mark_several_labels(
    store: dict[str, Any], key: str, owner: object, reader: TableReader
) -> None:
    """Take columns that are all 0 or 1 for several labels, which PyG keeps as floats."""
    values = store.get(key)
    if values is None or isinstance(values, list):
        return
    array = as_array(values, f"{reader.where}: {key} of {owner}")
    is_matrix = array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind == "f"
    if is_matrix and np.isin(array, (0, 1)).all():
        note = f"{key} of {owner}: all are 0 or 1, so they are taken for several labels"
        reader.tables.notes.append(note)
        store[key] = array.astype(np.uint8)


def _stores(data: Mapping[Any, Any], where: str) -> Mapping[Any, Mapping[str, Any]]:
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
    stores: dict[Any, dict[str, Any]] = {NODE: {}, EDGES: {}}
    for key, value in data.items():
        is_edges = key == "edge_index" or key in _PER_EDGE
        if key.endswith("_mask") and data.get("x") is not None:
            # The length of a mask tells whether it is of edges, unless there are as many nodes.
            count, nodes = (as_array(of, f"{where}: {key}").shape[:1] for of in (value, data["x"]))
            is_edges = count == (edge_count,) != nodes
        stores[EDGES if is_edges else NODE][key] = value
    return stores
