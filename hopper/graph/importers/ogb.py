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
from hopper.graph.importers.tables import (
    ArrayFeatures,
    GraphTables,
    edge_ids_array,
    read_labels,
    read_relation,
)
from hopper.graph.layout import safe_name
from hopper.graph.schema import Labels, Relation

_SPLIT_NAMES = {"valid": "val"}


def read_ogb(name: str, root: Path) -> GraphTables:
    """Load a dataset such as ``ogbn-arxiv``; the library downloads it into ``root`` if necessary.

    Raises
    ------
    RequestError: the library is not installed, or cannot load the dataset.
    GraphError: the dataset has an unknown form.
    """
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

    Raises
    ------
    GraphError: an entry is missing or has another form.
    """
    where = f"ogb dataset {name}"
    if "edge_index_dict" in graph:
        tables = _convert_heterogeneous(name, graph, labels, splits)
    else:
        tables = _make_tables(
            name,
            "node",
            counts={"node": int(_entry(graph, "num_nodes", where))},
            ends={("node", "edge", "node"): _entry(graph, "edge_index", where)},
            node_features={"node": graph.get("node_feat")},
            edge_features={("node", "edge", "node"): graph.get("edge_feat")},
        )
        labels, splits = {"node": labels}, {key: {"node": ids} for key, ids in splits.items()}
    for node_type, values in labels.items():
        where_labels = f"{where}: labels of {node_type}"
        tables.labels[safe_name(node_type)] = _convert_labels(np.asarray(values), where_labels)
    for key, ids in splits.items():
        tables.splits[_SPLIT_NAMES.get(key, key)] = np.asarray(next(iter(ids.values())))
    return tables


def _convert_heterogeneous(
    name: str, graph: Mapping[str, Any], labels: Any, splits: Mapping[str, Any]
) -> GraphTables:
    where = f"ogb dataset {name}"
    targets = {node_type for ids in splits.values() for node_type in ids} or set(labels)
    if len(targets) != 1:
        raise GraphError(f"{where}: expected splits of one node type, given {sorted(targets)}")
    return _make_tables(
        name,
        next(iter(targets)),
        counts=_entry(graph, "num_nodes_dict", where),
        ends=_entry(graph, "edge_index_dict", where),
        node_features=graph.get("node_feat_dict") or {},
        edge_features=graph.get("edge_feat_dict") or {},
    )


def _make_tables(
    name: str,
    target: str,
    *,
    counts: Mapping[str, int],
    ends: Mapping[tuple[str, str, str], Any],
    node_features: Mapping[str, Any],
    edge_features: Mapping[tuple[str, str, str], Any],
) -> GraphTables:
    where = f"ogb dataset {name}"
    edges: dict[Relation, tuple[NDArray[Any], NDArray[Any]]] = {}
    relations: dict[tuple[str, str, str], Relation] = {}
    for triple, pairs in ends.items():
        relation = relations[triple] = read_relation(*triple, edges, where)
        if pairs.ndim != 2 or pairs.shape[0] != 2:
            raise GraphError(
                f"{where}: edges of {relation}: expected shape [2, edges], "
                f"given {list(pairs.shape)}"
            )
        edges[relation] = (edge_ids_array(pairs[0]), edge_ids_array(pairs[1]))
    return GraphTables(
        name=name,
        source=f"Open Graph Benchmark, {name}, through the ogb library",
        target=safe_name(target),
        counts={safe_name(node_type): int(count) for node_type, count in counts.items()},
        edges=edges,
        features={
            safe_name(node_type): ArrayFeatures(rows)
            for node_type, rows in node_features.items()
            if rows is not None
        },
        edge_features={
            relations[triple]: ArrayFeatures(rows)
            for triple, rows in edge_features.items()
            if rows is not None
        },
    )


def _convert_labels(values: NDArray[Any], where: str) -> tuple[Labels, NDArray[Any]]:
    column = values.ndim == 1 or values.shape[1] == 1
    if column and np.issubdtype(values.dtype, np.floating):
        filled = np.where(np.isnan(values), -1, values)
        if np.array_equal(filled, np.floor(filled)):
            values = filled.astype(np.int64)
    return read_labels(values, where)


def _entry(graph: Mapping[str, Any], key: str, where: str) -> Any:
    if graph.get(key) is None:
        raise GraphError(f"{where}: {key}: missing entry")
    return graph[key]
