"""What label and split values may be, checked when a directory is opened or written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.errors import GraphError
from hopper.graph.array_file import blocks
from hopper.graph.schema import Labels


def label_format(labels: Labels, count: int) -> tuple[np.dtype[Any], list[tuple[int, ...]]]:
    """The dtype and the admissible shapes of the labels of ``count`` nodes."""
    table, dtype = (count, labels.columns), np.dtype(labels.dtype)
    if labels.kind == "class":
        return dtype, [(count,)]
    flat = labels.kind == "float" and labels.classes == 1
    return dtype, [(count,), table] if flat else [table]


def is_labelled(labels: Labels, values: NDArray[Any]) -> NDArray[np.bool_]:
    """[n] whether each node has a label; multi-hot rows always count, float rows without NaN; of
    several tasks, whether it has one of any."""
    if labels.kind == "tasks":
        parts = [is_labelled(own, task_values(own, values[:, c])) for own, _, c in _own(labels)]
        return np.asarray(np.logical_or.reduce(parts))
    if labels.kind == "class":
        return np.asarray(values >= 0)
    if labels.kind == "multi_hot":
        return np.ones(values.shape[0], np.bool_)
    return np.asarray(~np.isnan(values.reshape(values.shape[0], -1)).any(axis=1))


def check_labels(values: NDArray[Any], labels: Labels, where: str, first: int = 0) -> None:
    """Check label values: classes in [-1, classes), multi-hot 0 or 1, floats not infinite; of
    several tasks, each by its kind.

    Parameters
    ----------
    first: the node whose label is the first of the values.

    Raises
    ------
    GraphError: naming ``where``, the node, what was expected and given.
    """
    if labels.kind == "tasks":
        for name, (own, _, columns) in labels.places().items():
            part = values[:, columns]
            if own.kind != "float" and not np.array_equal(part, np.trunc(part)):
                raise GraphError(f"{where}: task {name}: expected whole numbers")
            check_labels(task_values(own, part), own, f"{where}: task {name}", first)
        return
    if labels.kind == "float":
        place = find_infinite(values.reshape(-1))
        if place >= 0:
            raise GraphError(
                f"{where}: of node {first + place // labels.classes}: expected a finite number, or "
                f"NaN for unlabelled, given {values.reshape(-1)[place]}"
            )
        return
    low, high = (-1, labels.classes) if labels.kind == "class" else (0, 2)
    place = find_outside(values.reshape(-1), low, high)
    if place < 0:
        return
    node = first + place if labels.kind == "class" else first + place // labels.classes
    expected = f"-1 or a class in [0, {labels.classes})" if labels.kind == "class" else "0 or 1"
    raise GraphError(
        f"{where}: of node {node}: expected {expected}, given {values.reshape(-1)[place]}"
    )


def task_values(labels: Labels, columns: NDArray[Any]) -> NDArray[Any]:
    """[n] or [n, classes]: labels of one task, as they would be stored alone.

    Parameters
    ----------
    columns: [n, columns] float32, of rows of several tasks.
    """
    found = columns.astype(labels.dtype)
    return found[:, 0] if labels.kind == "class" else found


def _own(labels: Labels) -> list[tuple[Labels, slice, slice]]:
    return list(labels.places().values())


def check_weights(weights: NDArray[Any], where: str) -> None:
    """Check that weights of edges are positive and finite.

    Raises
    ------
    GraphError: naming ``where``, the edge, what was expected and given.
    """
    for first, part in blocks(weights):
        place = find_no_weight(part)
        if place >= 0:
            raise GraphError(
                f"{where}: of edge {first + place}: expected a positive, finite number, given "
                f"{part[place]} (an edge that is never to be drawn is best left out)"
            )


def check_split(ids: NDArray[np.int64], count: int, where: str) -> None:
    """Check that ids lie in [0, count), ascend and are distinct.

    Raises
    ------
    GraphError: naming ``where``, the place, what was expected and given.
    """
    place = find_outside(ids, 0, count)
    if place >= 0:
        raise GraphError(
            f"{where}: at {place}: expected an id in [0, {count}), given {int(ids[place])}"
        )
    place = find_not_ascending(ids)
    if place >= 0:
        raise GraphError(
            f"{where}: at {place}: expected distinct ids in ascending order, "
            f"given {int(ids[place])} after {int(ids[place - 1])}"
        )


@kernel
def find_outside(values: NDArray[Any], low: int, high: int) -> int:
    """The first place of ``values`` outside [low, high); else -1."""
    for place in range(values.size):
        if values[place] < low or values[place] >= high:
            return place
    return -1


@kernel
def find_not_ascending(ids: NDArray[Any]) -> int:
    """The first place whose id does not exceed the one before; else -1."""
    for place in range(1, ids.size):
        if ids[place] <= ids[place - 1]:
            return place
    return -1


@kernel
def find_no_weight(weights: NDArray[np.float32]) -> int:
    """The first place of ``weights`` that is not positive and finite; else -1."""
    for place in range(weights.size):
        if not 0 < weights[place] < np.inf:
            return place
    return -1


@kernel
def find_infinite(values: NDArray[np.float32]) -> int:
    """The first infinite place of ``values``; else -1."""
    for place in range(values.size):
        if np.isinf(values[place]):
            return place
    return -1
