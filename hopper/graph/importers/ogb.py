"""Import node property prediction graphs of the Open Graph Benchmark through its library.

Hu et al., "Open Graph Benchmark: Datasets for Machine Learning on Graphs", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError, cannot_import
from hopper.graph.importers.read_arrays import read_ends, read_labels
from hopper.graph.importers.tables import (
    Features,
    GraphTables,
    Table,
    array_features,
    read_relation,
)
from hopper.graph.layout import safe_name
from hopper.graph.schema import Labels

_SPLIT_NAMES = {"valid": "val"}
_NODE, _EDGES = "node", ("node", "edge", "node")


def read_ogb(name: str, root: Path) -> GraphTables:
    """Load a dataset such as ``ogbn-arxiv``; the library downloads it into ``root`` if need be."""
    try:
        from ogb.nodeproppred import NodePropPredDataset
    except ImportError as error:
        raise RequestError(cannot_import("import ogb", "ogb", error)) from error
    # Imported here: it imports torch.
    from hopper.graph.importers.array_pickle import load_arrays_only

    try:
        with load_arrays_only():
            dataset = NodePropPredDataset(name=name, root=str(root))
            graph, labels = dataset[0]
            splits = dataset.get_idx_split()
    # The library raises whatever its downloader and unpacker raise.
    except Exception as error:
        raise RequestError(
            f"import ogb: the ogb library could not load {name!r} into {root}: {error}"
        ) from error
    return tables_from_ogb(name, graph, labels, splits)


def tables_from_ogb(
    name: str, graph: Mapping[str, Any], labels: Any, splits: Mapping[str, Any]
) -> GraphTables:
    """Convert the library's (graph, labels) pair and split dictionary.

    Parameters
    ----------
    graph: ``edge_index`` int64 [2, edges], ``node_feat``, ``edge_feat`` and ``num_nodes`` of a
        homogeneous graph. A heterogeneous graph has them by type or relation, in
        ``edge_index_dict``, ``node_feat_dict``, ``edge_feat_dict`` and ``num_nodes_dict``.
    labels: [n, c], or by node type. Several integer columns are multi-hot labels. One float column
        of integers, with NaN for unlabelled nodes, holds classes.
    splits: ids by split, or by split and node type; ``valid`` becomes ``val``.
    """
    where = f"ogb dataset {name}"
    if "edge_index_dict" not in graph:
        graph = {
            "num_nodes_dict": {_NODE: _entry(graph, "num_nodes", where)},
            "edge_index_dict": {_EDGES: _entry(graph, "edge_index", where)},
            "node_feat_dict": {_NODE: graph.get("node_feat")},
            "edge_feat_dict": {_EDGES: graph.get("edge_feat")},
        }
        labels, splits = {_NODE: labels}, {key: {_NODE: ids} for key, ids in splits.items()}
    targets = {node_type for ids in splits.values() for node_type in ids} or set(labels)
    if len(targets) != 1:
        raise GraphError(f"{where}: expected splits of one node type, given {sorted(targets)}")
    source = f"Open Graph Benchmark, {name}, through the ogb library"
    tables = GraphTables(name, source, targets=(safe_name(next(iter(targets))),))
    features = {**(graph.get("node_feat_dict") or {}), **(graph.get("edge_feat_dict") or {})}
    for node_type, count in _entry(graph, "num_nodes_dict", where).items():
        tables.nodes[safe_name(node_type)] = Table(
            int(count), features=_features(features, node_type)
        )
    for triple, pairs in _entry(graph, "edge_index_dict", where).items():
        relation = read_relation(triple, tables.edges, where)
        tables.edges[relation] = read_ends(np.asarray(pairs), f"{where}: edges of {relation}")
        tables.edges[relation].features = _features(features, triple)
    for node_type, values in labels.items():
        where_labels = f"{where}: labels of {node_type}"
        read = _convert_labels(np.asarray(values), where_labels)
        tables.nodes[safe_name(node_type)].labels = read
    tables.divide_splits({
        _SPLIT_NAMES.get(key, key): np.asarray(next(iter(ids.values())))
        for key, ids in splits.items()
    })  # fmt: skip
    return tables


def _features(features: Mapping[Any, Any], key: Any) -> Features | None:
    return None if features.get(key) is None else array_features(features[key])


def _convert_labels(values: NDArray[Any], where: str) -> tuple[Labels, NDArray[Any]]:
    is_column = values.ndim == 1 or values.shape[1] == 1
    if is_column and np.issubdtype(values.dtype, np.floating):
        filled = np.where(np.isnan(values), -1, values)
        if np.array_equal(filled, np.floor(filled)):
            values = filled.astype(np.int64)
    return read_labels(values, where)


def _entry(graph: Mapping[str, Any], key: str, where: str) -> Any:
    if graph.get(key) is None:
        raise GraphError(f"{where}: {key}: missing entry")
    return graph[key]
