"""Summarise a graph for ``hopper inspect graph``: counts, degrees, labels, splits, bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph import layout
from hopper.graph.array_file import iter_pieces
from hopper.graph.check_values import is_labelled, task_values
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Labelled, Labels
from hopper.graph.schema_json import target_to_json

MAX_LISTED_CLASSES: Final = 1000


def describe(graph: GraphDirectory) -> dict[str, Any]:
    """Summarise a graph directory in values that JSON can hold; docs/reference/graph-directory.md
    lists them. Features and neighbours are not read, and memory is a few bytes a node."""
    schema, relations = graph.schema, []
    touched = {name: np.zeros(kind.count, np.bool_) for name, kind in schema.node_types.items()}
    for relation in schema.ordered_relations():
        topology, kind = graph.topology(relation), schema.relations[relation]
        touched[relation.src] |= topology.out_degrees > 0
        touched[relation.dst] |= topology.in_degrees > 0
        files = [layout.topology_file(graph.path, relation, of) for of in layout.TOPOLOGY_ARRAYS]
        relations.append({
            **relation._asdict(),
            **_features(graph, relation),
            "weighted": kind.weighted,
            "timed": kind.timed,
            "topology_bytes": sum(file.stat().st_size for file in files),
            "in_degree": summarize_degrees(topology.in_degrees),
            "out_degree": summarize_degrees(topology.out_degrees),
        })  # fmt: skip
    return {
        "path": str(graph.path),
        "name": schema.name,
        "source": schema.source,
        "target": target_to_json(schema),
        "bytes": sum(file.stat().st_size for file in graph.path.rglob("*") if file.is_file()),
        "node_types": {
            name: {**_features(graph, name), "without_edges": _share_of(~touched[name])}
            for name in schema.node_types
        },
        "relations": relations,
        "labels": {
            str(owner): summarize_labels(labels, graph.labels(owner))
            for owner, labels in schema.labels.items()
        },
        "splits": {name: _describe_split(graph, name) for name in schema.splits},
    }


def summarize_degrees(degrees: NDArray[np.int64]) -> dict[str, float | int | None]:
    """Compute minimum, median, mean, 99th percentile and maximum, and the share of zeros; all are
    None if there is no node."""
    names = ("min", "median", "mean", "p99", "max", "zero")
    if degrees.size == 0:
        return dict.fromkeys(names)
    median, p99 = np.percentile(degrees, (50, 99)).tolist()
    low, mean, high = int(degrees.min()), float(degrees.mean()), int(degrees.max())
    values = low, median, mean, p99, high, _share_of(degrees == 0)
    return dict(zip(names, values, strict=True))


def summarize_labels(labels: Labels, values: NDArray[Any]) -> dict[str, Any]:
    """Count the labelled nodes; of classes and multi-hot labels count each class, of floats take
    minimum, mean and maximum."""
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
    most, least = int(counts.max()), int(counts.min())
    per_class = {"min": least, "median": float(np.median(counts)), "max": most}
    listed = {"counts": counts.tolist()} if labels.classes <= MAX_LISTED_CLASSES else {}
    empty = int((counts == 0).sum())
    return summary | {"per_class": per_class, "empty_classes": empty} | listed


def _features(graph: GraphDirectory, owner: Labelled) -> dict[str, Any]:
    kind, file = graph.schema.kinds[owner], layout.features_file(graph.path, owner)
    return {
        "count": kind.count,
        "feature_dim": kind.feature_dim,
        "feature_dtype": kind.feature_dtype,
        "feature_bytes": file.stat().st_size if file.is_file() else 0,
    }


def _describe_split(graph: GraphDirectory, name: str) -> dict[str, Any]:
    schema, ids = graph.schema, graph.split(name)
    share = ids.size / schema.target_count if schema.target_count else None
    summary: dict[str, Any] = {"count": int(ids.size), "share": share}
    if schema.target_labels is not None:
        owners = schema.target_relations or [schema.target]
        values = np.concatenate([graph.labels(owner) for owner in owners])[ids]
        summary["unlabelled"] = int((~is_labelled(schema.target_labels, values)).sum())
    return summary


def _share_of(is_so: NDArray[np.bool_]) -> float | None:
    return int(is_so.sum()) / is_so.size if is_so.size else None
