"""Check the values of labels, weights and splits when a directory is opened or written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel, read_only
from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces
from hopper.graph.schema import Labels


def label_format(labels: Labels, count: int) -> tuple[np.dtype[Any], list[tuple[int, ...]]]:
    """Return the dtype and the admissible shapes of the labels of ``count`` nodes."""
    table, dtype = (count, labels.columns), np.dtype(labels.dtype)
    if labels.kind == "class":
        return dtype, [(count,)]
    flat = labels.kind == "float" and labels.classes == 1
    return dtype, [(count,), table] if flat else [table]


def is_labelled(labels: Labels, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return [n] bool: whether each node has a label.

    A multi-hot row always counts, a float row if it has no NaN. Where there are several tasks, a
    label of any task counts.
    """
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


def check_labels(values: NDArray[Any], labels: Labels, where: str, first: int = 0) -> None:
    """Check that classes are in [-1, classes), multi-hot labels 0 or 1, and floats not infinite.

    Labels of several tasks are checked task by task.

    Parameters
    ----------
    first: id of the first labelled node in ``values``.

    Raises
    ------
    GraphError: a label is out of range. The text names ``where``, the node, expected and given.
    """
    if labels.kind == "tasks":
        for name, (task, _, columns) in labels.task_slices().items():
            stored = values[:, columns]
            if task.kind != "float" and not np.array_equal(stored, np.trunc(stored)):
                raise GraphError(f"{where}: task {name}: expected whole numbers")
            check_labels(task_values(task, stored), task, f"{where}: task {name}", first)
        return
    if labels.kind == "float":
        index = find_infinite(read_only(values.reshape(-1)))
        if index >= 0:
            raise GraphError(
                f"{where}: of node {first + index // labels.classes}: expected a finite number, or "
                f"NaN for unlabelled, given {values.reshape(-1)[index]}"
            )
        return
    low, high = (-1, labels.classes) if labels.kind == "class" else (0, 2)
    index = find_outside(values.reshape(-1), low, high)
    if index < 0:
        return
    node = first + index if labels.kind == "class" else first + index // labels.classes
    expected = f"-1 or a class in [0, {labels.classes})" if labels.kind == "class" else "0 or 1"
    raise GraphError(
        f"{where}: of node {node}: expected {expected}, given {values.reshape(-1)[index]}"
    )


def task_values(labels: Labels, columns: NDArray[Any]) -> NDArray[Any]:
    """Convert labels of one of several tasks to the form they have alone: [n] or [n, classes].

    Parameters
    ----------
    labels: the task's labels.
    columns: [n, columns] float32, the task's columns.
    """
    values = columns.astype(labels.dtype)
    return values[:, 0] if labels.kind == "class" else values


def check_weights(weights: NDArray[Any], where: str) -> None:
    """Check that weights of edges are positive and finite.

    Raises
    ------
    GraphError: a weight is not. The text names ``where``, the edge, expected and given.
    """
    for first, piece in iter_pieces(weights):
        index = find_no_weight(read_only(piece))
        if index >= 0:
            raise GraphError(
                f"{where}: of edge {first + index}: expected a positive, finite number, given "
                f"{piece[index]} (an edge that is never to be drawn is best left out)"
            )


def check_split(ids: NDArray[np.int64], count: int, where: str) -> None:
    """Check that ids lie in [0, count), ascend and are distinct.

    Raises
    ------
    GraphError: they do not. The text names ``where``, the index, expected and given.
    """
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
    return int(_find_outside(read_only(values), low, high))


def find_not_ascending(ids: NDArray[Any]) -> int:
    """Return the first index whose id does not exceed the id before it, or -1."""
    return int(_find_not_ascending(read_only(ids)))


@kernel
def _find_outside(values: NDArray[Any], low: int, high: int) -> int:
    for index in range(values.size):
        if values[index] < low or values[index] >= high:
            return index
    return -1


@kernel
def _find_not_ascending(ids: NDArray[Any]) -> int:
    for index in range(1, ids.size):
        if ids[index] <= ids[index - 1]:
            return index
    return -1


@kernel
def find_no_weight(weights: NDArray[np.float32]) -> int:
    """Return the index of the first weight that is not positive and finite, or -1."""
    for index in range(weights.size):
        if not 0 < weights[index] < np.inf:
            return index
    return -1


@kernel
def find_infinite(values: NDArray[np.float32]) -> int:
    """Return the index of the first infinite value, or -1."""
    for index in range(values.size):
        if np.isinf(values[index]):
            return index
    return -1
