"""Read the arrays, tensors and lists that sources attach to nodes and edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.source_files import first_line
from hopper.graph.importers.tables import Features, Table, array_features
from hopper.graph.layout import check_name
from hopper.graph.schema import Labels

_MASK: Final = "_mask"
_MOST_CLASSES: Final = 1 << 24
"""Limit for one of several tasks, because their classes are stored in float32."""


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Convert a tensor, an array or a list to a numpy array."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            # NumPy has no bfloat16.
            value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
        array = np.asarray(value)
    # Libraries raise many kinds of errors for sparse and other tensors.
    except Exception as error:
        raise GraphError(
            f"{where}: expected a dense tensor or an array: {first_line(error)}"
        ) from error
    if array.dtype == object:
        raise GraphError(f"{where}: expected a tensor or an array, given {type(value).__name__}")
    return array


def fill_table(
    table: Table, data: MutableMapping[str, Any], keys: Mapping[str, str], where: str, owner: str
) -> None:
    """Take a table's columns out of the data that a library attaches to its nodes or edges."""
    readers: dict[str, Callable[..., Any]] = {
        "features": read_features,
        "labels": read_labels,
        "times": read_times,
        "weights": read_weights,
    }
    for column, key in keys.items():
        if data.get(key) is not None:
            field = f"{where}: {key} of {owner}"
            setattr(table, column, readers[column](as_array(data.pop(key), field), field))


def take_masks(
    table: Table, data: MutableMapping[str, Any], where: str, owner: str, notes: list[str]
) -> None:
    """Take a table's splits out of the masks ``<split>_mask``, and note which data are left."""
    for key in [key for key in data if key.endswith(_MASK)]:
        mask = as_array(data.pop(key), f"{where}: {key} of {owner}")
        if mask.ndim == 2:
            notes.append(f"{key} of {owner}: the first of {mask.shape[1]} splits was taken")
            mask = mask[:, 0]
        if mask.ndim != 1 or (mask.size and not np.isin(mask, (0, 1)).all()):
            raise GraphError(
                f"{where}: {key} of {owner}: expected a mask of 0 and 1, "
                f"given {mask.dtype} of shape {list(mask.shape)}"
            )
        if len(mask) != table.count:
            raise GraphError(
                f"{where}: {key} of {owner}: expected {table.count} values, given {len(mask)}"
            )
        table.splits = {**(table.splits or {}), key.removesuffix(_MASK): np.flatnonzero(mask)}
    unread = sorted(key for key in data if not key.startswith("_"))
    if unread:
        notes.append(f"data of {owner} left out: {', '.join(unread)}")


def read_ends(ends: NDArray[Any], where: str) -> Table:
    """Return the table of edges whose ends are [2, edges] integers, sources first."""
    if ends.ndim != 2 or ends.shape[0] != 2 or not np.issubdtype(ends.dtype, np.integer):
        raise GraphError(
            f"{where}: expected integers of shape [2, edges], sources first, given {ends.dtype} of "
            f"shape {list(ends.shape)}"
        )
    if ends.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        ends = ends.astype(np.int64)
    return Table(ends.shape[1], ends[0], ends[1])


def read_features(rows: NDArray[Any], where: str) -> Features:
    """Return features [n, d]; a vector becomes one column."""
    if rows.ndim == 1:
        rows = rows[:, np.newaxis]
    if rows.ndim != 2:
        raise GraphError(f"{where}: expected shape [n, d], given {list(rows.shape)}")
    return array_features(rows)


def read_weights(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Convert weights of edges, [edges] or [edges, 1], to float32."""
    values = _drop_column(values)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise GraphError(
            f"{where}: expected numbers of shape [edges], given {values.dtype} of shape "
            f"{list(values.shape)}"
        )
    return values.astype(np.float32)


def read_times(values: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Convert times, [n] or [n, 1]: dates to seconds since 1970; integers stay, in any unit."""
    values = _drop_column(values)
    if values.dtype.kind == "f" and (np.isfinite(values) & (values == np.trunc(values))).all():
        # Integers become floats in a table that has floats in other columns.
        values = values.astype(np.int64)
    if values.dtype.kind == "M":
        if np.isnat(values).any():
            raise GraphError(f"{where}: of {int(np.isnat(values).argmax())}: expected a date")
        values = values.astype("datetime64[s]").astype(np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise GraphError(
            f"{where}: expected integers (of any unit) or dates, one each, given {values.dtype} of "
            f"shape {list(values.shape)}"
        )
    return values.astype(np.int64)


def read_labels(
    values: NDArray[Any], where: str, classes: int | None = None
) -> tuple[Labels, NDArray[Any]]:
    """Convert labels, whose dtype and shape decide their kind.

    Integers of shape [n] or [n, 1] are classes (negative = unlabelled). Integers or booleans of
    shape [n, c] are multi-hot. Floats are float labels.

    Parameters
    ----------
    classes: number of classes; None = the largest class + 1.
    """
    values = _drop_column(values)
    if values.ndim not in (1, 2):
        raise GraphError(f"{where}: expected labels [n] or [n, c], given {list(values.shape)}")
    width = 1 if values.ndim == 1 else int(values.shape[1])
    if np.issubdtype(values.dtype, np.floating):
        return Labels("float", width), values.astype(np.float32)
    if not (np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_):
        raise GraphError(f"{where}: expected integer or float labels, given {values.dtype}")
    if values.ndim == 2:
        if values.size and (values.min() < 0 or values.max() > 1):
            raise GraphError(f"{where}: expected multi-hot labels of 0 and 1")
        return Labels("multi_hot", width), values.astype(np.uint8)
    numbers = np.maximum(values.astype(np.int64), -1)
    largest = int(numbers.max(initial=0)) + 1
    return Labels("class", classes if classes is not None else max(1, largest)), numbers


def join_tasks(
    tasks: Mapping[str, tuple[Labels, NDArray[Any]]], where: str
) -> tuple[Labels, NDArray[np.float32]]:
    """Put the labels of several tasks side by side."""
    lengths = {name: len(values) for name, (_, values) in tasks.items()}
    if len(set(lengths.values())) > 1:
        raise GraphError(f"{where}: expected as many labels of every task, given {lengths}")
    for name, (labels, _) in tasks.items():
        check_name(name, "task", where)
        if labels.kind == "class" and labels.classes > _MOST_CLASSES:
            raise GraphError(
                f"{where}: task {name}: expected at most {_MOST_CLASSES:,} classes, given "
                f"{labels.classes:,}"
            )
    columns = [v if v.ndim == 2 else v[:, np.newaxis] for _, v in tasks.values()]
    joined = np.concatenate(columns, 1, dtype=np.float32)
    by_task = tuple((name, labels) for name, (labels, _) in tasks.items())
    return Labels("tasks", sum(labels.classes for _, labels in by_task), by_task), joined


def number_texts(texts: Sequence[str | None]) -> tuple[tuple[Labels, NDArray[np.int64]], list[str]]:
    """Number texts as classes in sorted order, -1 for None or an empty text; return the classes'
    names too."""
    names = sorted({text for text in texts if text})
    numbers = {name: number for number, name in enumerate(names)}
    values = np.array([numbers[text] if text else -1 for text in texts], np.int64)
    return (Labels("class", max(1, len(names))), values), names


def describe_classes(names: Sequence[str]) -> str:
    """Describe which numbers classes got, for a note."""
    first_classes = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:10]))
    more = ", ..." * bool(names[10:])
    return f"{len(names)} classes, in order of text: {first_classes}{more}"


def as_texts(values: Any) -> list[str | None] | None:
    """Convert an array or a list to texts, or return None if it holds anything else.

    An empty or missing text becomes None.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "UOT":
        return None
    # pandas has NaN for a missing text.
    texts = [
        None if text is None or text == "" or text != text else text for text in array.tolist()
    ]
    return texts if all(text is None or isinstance(text, str) for text in texts) else None


def _drop_column(values: NDArray[Any]) -> NDArray[Any]:
    """Turn a single column [n, 1] into a vector."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
