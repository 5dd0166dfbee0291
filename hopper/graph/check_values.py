"""Check the values of labels, weights and splits when a directory is opened or written.

Errors are GraphErrors that name the array, the node, edge or index, expected and given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import find_first, iter_pieces
from hopper.graph.schema import GraphSchema, Labels


def is_labelled(labels: Labels, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return [n] bool: whether each node has a label: a class, no NaN, one of its tasks, or any
    multi-hot row."""
    if labels.kind == "tasks":
        by_task = [
            is_labelled(task, task_values(task, values[:, columns]))
            for task, _, columns in labels.task_slices().values()
        ]
        return np.asarray(np.logical_or.reduce(by_task))
    if labels.kind == "class":
        return np.asarray(values >= 0)
    if labels.kind == "multi_hot":
        return np.ones(values.shape[0], np.bool_)
    return np.asarray(~np.isnan(values.reshape(values.shape[0], -1)).any(axis=1))


def task_values(labels: Labels, columns: NDArray[Any]) -> NDArray[Any]:
    """Convert labels of one of several tasks, [n, columns], to the form that they have alone."""
    values = columns.astype(labels.dtype)
    return values[:, 0] if labels.kind == "class" else values


def check_array(
    schema: GraphSchema, part: str, owner: object, values: NDArray[Any], where: str
) -> None:
    """Check the values of an array that :func:`hopper.graph.layout.graph_arrays` lists."""
    if part == "weights":
        index = find_first(values, lambda _, w: ~((w > 0) & (w < np.inf)))
        if index >= 0:
            raise GraphError(
                f"{where}: of edge {index}: expected a positive, finite number, given "
                f"{values[index]} (an edge that is never to be drawn is best left out)"
            )
    elif part == "split":
        check_split(values, schema.target_count, where)
    elif part == "labels":
        labels = next(of for name, of in schema.labels.items() if str(name) == str(owner))
        for first, rows in iter_pieces(values):
            check_labels(rows, labels, where, first)


def check_labels(values: NDArray[Any], labels: Labels, where: str, first: int = 0) -> None:
    """Check that classes are in [-1, classes), multi-hot labels 0 or 1, and floats not infinite;
    ``first`` is the id of the first node in ``values``."""
    if labels.kind == "tasks":
        for name, (task, _, columns) in labels.task_slices().items():
            stored = values[:, columns]
            if task.kind != "float" and not np.array_equal(stored, np.trunc(stored)):
                raise GraphError(f"{where}: task {name}: expected whole numbers")
            check_labels(task_values(task, stored), task, f"{where}: task {name}", first)
        return
    flat = values.reshape(-1)
    if labels.kind == "float":
        expected = "a finite number, or NaN for unlabelled"
        index = find_first(flat, lambda _, v: np.isinf(v))
    elif labels.kind == "class":
        expected = f"-1 or a class in [0, {labels.classes})"
        index = find_outside(flat, -1, labels.classes)
    else:
        expected, index = "0 or 1", find_outside(flat, 0, 2)
    if index >= 0:
        node = first + index // labels.columns
        raise GraphError(f"{where}: of node {node}: expected {expected}, given {flat[index]}")


def check_split(ids: NDArray[np.int64], count: int, where: str) -> None:
    """Check that ids lie in [0, count), ascend and are distinct."""
    index = find_outside(ids, 0, count)
    if index >= 0:
        raise GraphError(
            f"{where}: at {index}: expected an id in [0, {count}), given {int(ids[index])}"
        )
    index = find_not_ascending(ids)
    if index >= 0:
        raise GraphError(
            f"{where}: at {index}: expected distinct ids in ascending order, "
            f"given {int(ids[index])} after {int(ids[index - 1])}"
        )


def find_outside(values: NDArray[Any], low: int, high: int) -> int:
    """Return the index of the first value outside [low, high), or -1."""
    return find_first(values, lambda _, v: (v < low) | (v >= high))


def find_not_ascending(ids: NDArray[Any]) -> int:
    """Return the first index whose id does not exceed the id before it, or -1."""
    index = find_first(ids[1:], lambda first, v: v <= ids[first : first + v.size])
    return index + 1 if index >= 0 else -1
