"""Summarise a graph for ``hopper dataset info``: counts, degrees, labels, splits, bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph import layout
from hopper.graph.array_file import iter_pieces
from hopper.graph.check_values import is_labelled, task_values
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, Labels, NodeType, Relation
from hopper.graph.schema_json import target_to_json

MAX_LISTED_CLASSES: Final = 1000


def describe(graph: GraphDirectory) -> dict[str, Any]:
    """Summarise a graph directory in values that JSON can hold.

    This reads degrees, labels and splits, but no features or neighbours, in memory of a few bytes
    a node.

    Returns
    -------
    ``path``, ``name``, ``source``, ``target``, ``bytes``, and an entry for every node type,
    relation, labels and split; docs/reference/graph-directory.md lists the entries' fields.
    """
    schema = graph.schema
    touched = {name: np.zeros(kind.count, np.bool_) for name, kind in schema.node_types.items()}
    relations = [_relation(graph, relation, touched) for relation in schema.ordered_relations()]
    return {
        "path": str(graph.path),
        "name": schema.name,
        "source": schema.source,
        "target": target_to_json(schema),
        "bytes": sum(file.stat().st_size for file in graph.path.rglob("*") if file.is_file()),
        "node_types": {
            name: {
                **_features(kind, layout.features_file(graph.path, name)),
                "without_edges": _share(int((~touched[name]).sum()), kind.count),
            }
            for name, kind in schema.node_types.items()
        },
        "relations": relations,
        "labels": {
            str(owner): summarize_labels(labels, graph.labels(owner))
            for owner, labels in schema.labels.items()
        },
        "splits": {name: _split(graph, name) for name in schema.splits},
    }


def summarize_degrees(degrees: NDArray[np.int64]) -> dict[str, float | int | None]:
    """Compute minimum, median, mean, 99th percentile and maximum, and the share of zeros.

    All are None if there is no node.
    """
    if degrees.size == 0:
        return dict.fromkeys(("min", "median", "mean", "p99", "max", "zero"))
    median, p99 = np.percentile(degrees, (50, 99))
    return {
        "min": int(degrees.min()),
        "median": float(median),
        "mean": float(degrees.mean()),
        "p99": float(p99),
        "max": int(degrees.max()),
        "zero": _share(int((degrees == 0).sum()), degrees.size),
    }


def summarize_labels(labels: Labels, values: NDArray[Any]) -> dict[str, Any]:
    """Count the labelled nodes, and describe the labels' distribution.

    Returns
    -------
    ``kind``, ``classes``, ``nodes``, ``labelled``; for classes and multi-hot labels ``per_class``
    (minimum, median and maximum number of nodes), ``empty_classes`` and, up to 1000 classes,
    ``counts``; for float labels ``min``, ``mean`` and ``max`` over the labelled nodes.
    """
    summary = {"kind": labels.kind, "classes": labels.classes, "nodes": int(values.shape[0])}
    if labels.kind == "tasks":
        tasks = {
            name: summarize_labels(task, task_values(task, np.asarray(values[:, columns])))
            for name, (task, _, columns) in labels.task_slices().items()
        }
        return summary | {"labelled": int(is_labelled(labels, values).sum()), "tasks": tasks}
    counts, labelled = np.zeros(labels.classes, np.int64), 0
    low, high, total = np.inf, -np.inf, 0.0
    for _, rows in iter_pieces(values):
        known = np.asarray(rows)[is_labelled(labels, rows)]
        labelled += len(known)
        if labels.kind == "class":
            counts += np.bincount(known, minlength=labels.classes)
        elif labels.kind == "multi_hot":
            counts += known.sum(axis=0, dtype=np.int64)
        elif known.size:
            low, high = min(low, float(known.min())), max(high, float(known.max()))
            total += float(known.sum(dtype=np.float64))
    summary["labelled"] = labelled
    if labels.kind == "float":
        spread = (low, total / (labelled * labels.classes), high) if labelled else (None,) * 3
        return summary | dict(zip(("min", "mean", "max"), spread, strict=True))
    per_class = {
        "min": int(counts.min()),
        "median": float(np.median(counts)),
        "max": int(counts.max()),
    }
    told = {"per_class": per_class, "empty_classes": int((counts == 0).sum())}
    listed = {"counts": counts.tolist()} if labels.classes <= MAX_LISTED_CLASSES else {}
    return summary | told | listed


def _relation(
    graph: GraphDirectory, relation: Relation, touched: dict[str, NDArray[np.bool_]]
) -> dict[str, Any]:
    """Summarise a relation, and mark the nodes that have an edge of it in ``touched``."""
    kind = graph.schema.relations[relation]
    topology = graph.topology(relation)
    touched[relation.src] |= topology.out_degrees > 0
    touched[relation.dst] |= topology.in_degrees > 0
    return {
        **relation._asdict(),
        **_features(kind, layout.edge_features_file(graph.path, relation)),
        "weighted": kind.weighted,
        "timed": kind.timed,
        "topology_bytes": sum(
            _size(layout.topology_file(graph.path, relation, array))
            for array in layout.TOPOLOGY_ARRAYS
        ),
        "in_degree": summarize_degrees(topology.in_degrees),
        "out_degree": summarize_degrees(topology.out_degrees),
    }


def _features(kind: NodeType | EdgeType, file: Path) -> dict[str, Any]:
    return {
        "count": kind.count,
        "feature_dim": kind.feature_dim,
        "feature_dtype": kind.feature_dtype,
        "feature_bytes": _size(file),
    }


def _split(graph: GraphDirectory, name: str) -> dict[str, Any]:
    schema = graph.schema
    ids = graph.split(name)
    share = _share(int(ids.size), schema.target_count)
    summary: dict[str, Any] = {"count": int(ids.size), "share": share}
    if schema.target_labels is not None:
        owners = schema.target_relations or [schema.target]
        values = np.concatenate([graph.labels(owner) for owner in owners])[ids]
        summary["unlabelled"] = int((~is_labelled(schema.target_labels, values)).sum())
    return summary


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
