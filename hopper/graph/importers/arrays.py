"""Make tables of arrays, tensors and lists: of those that libraries hold, and of a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.store.npy import ID_DTYPES
from hopper.errors import GraphError
from hopper.graph.importers.source_files import explain_errors
from hopper.graph.importers.tables import (
    Features,
    GraphTables,
    Table,
    array_features,
    count_nodes,
    read_relation,
)
from hopper.graph.layout import check_name, safe_name
from hopper.graph.schema import Labelled, Labels, Relation

NODE: Final = "node"
"""Name of the only node type."""
EDGES: Final = Relation(NODE, "edge", NODE)
"""The only relation."""
_MASK: Final = "_mask"
_WHERE: Final = "from_arrays"
_COLUMNS: Final = {name: name for name in ("features", "labels", "times")}
_COLUMNS_OF_EDGES: Final = {**_COLUMNS, "features": "edge features", "weights": "weights"}

Triple = tuple[str, str, str]
_Data = Mapping[str, Any]
_Keys = Mapping[str, str]
_Read = tuple[Labels, NDArray[Any]]


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Convert a tensor, an array or a list to a numpy array."""
    with explain_errors(f"{where}: expected a dense tensor or an array"):
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            # NumPy has no bfloat16.
            value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
        array = np.asarray(value)
    if array.dtype == object:
        raise GraphError(f"{where}: expected a tensor or an array, given {type(value).__name__}")
    return array


def split_triple(text: str, where: str) -> Triple:
    """Return the source type, the name and the destination type of ``src:rel:dst``, as DGL names
    relations."""
    names = text.split(":")
    if len(names) != 3:
        raise GraphError(f"{where}: expected src:rel:dst, given {text!r}")
    return names[0], names[1], names[2]


class TableReader:
    """Makes the tables of a graph of what a library or a user has; errors begin with ``where``.

    The columns and masks of nodes or edges are in a dictionary ``data``. ``keys`` has the key of
    each column there; a note tells what nobody read.
    """

    def __init__(self, name: str, source: str, where: str) -> None:
        self.tables, self.where = GraphTables(name, source), where

    def add_nodes(self, name: str, data: _Data, keys: _Keys, count: int | None) -> Table:
        """Add the table of a node type; without a count it has as many nodes as there are rows, or
        as edges name that were added before."""
        safe = safe_name(name)
        if safe in self.tables.nodes:
            raise GraphError(
                f"{self.where}: node type {name!r}: is {safe!r} as part of a path, twice"
            )
        table = self.tables.nodes[safe] = Table(0 if count is None else count)
        self._take(table, name, data, keys, is_counted=count is not None)
        return table

    def add_edges(self, triple: Triple, ends: Any, data: _Data, keys: _Keys) -> Table:
        """Add the table of a relation, whose ends are [2, edges] integers, sources first."""
        relation = read_relation(triple, self.tables.edges, self.where)
        what = f"{self.where}: edges of {relation}"
        ends = as_array(ends, what)
        if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
            raise GraphError(
                f"{what}: expected integers of shape [2, edges], sources first, given {ends.dtype} "
                f"of shape {list(ends.shape)}"
            )
        if ends.dtype not in ID_DTYPES:
            ends = ends.astype(np.int64)
        table = self.tables.edges[relation] = Table(ends.shape[1], ends[0], ends[1])
        self._take(table, relation, data, keys)
        return table

    def _take(
        self, table: Table, owner: Labelled, data: _Data, keys: _Keys, *, is_counted: bool = True
    ) -> None:
        """Set a table's columns and splits, and its count unless that is known."""
        data = dict(data)
        for column, key in keys.items():
            set_column(table, column, data.pop(key, None), f"{self.where}: {key} of {owner}")
        masks = {
            key: as_array(data.pop(key), f"{self.where}: {key} of {owner}")
            for key in [key for key in data if key.endswith(_MASK)]
        }
        if not is_counted:
            columns = table.labels and table.labels[1], table.times, *masks.values()
            rows = [values.shape[0] for values in columns if values is not None and values.ndim]
            rows = [table.features.shape[0]] if table.features is not None else rows
            table.count = rows[0] if rows else count_nodes(self.tables, safe_name(str(owner)))
        for key, mask in masks.items():
            if mask.ndim == 2:
                note = f"{key} of {owner}: the first of {mask.shape[1]} splits was taken"
                self.tables.notes.append(note)
                mask = mask[:, 0]
            if mask.shape != (table.count,) or (mask.size and not np.isin(mask, (0, 1)).all()):
                raise GraphError(
                    f"{self.where}: {key} of {owner}: expected a mask of 0 and 1 of shape "
                    f"[{table.count}], given {mask.dtype} of shape {list(mask.shape)}"
                )
            table.splits = {**(table.splits or {}), key.removesuffix(_MASK): np.flatnonzero(mask)}
        unread = sorted(key for key in data if not key.startswith("_"))
        if unread:
            self.tables.notes.append(f"data of {owner} left out: {', '.join(unread)}")


def set_column(table: Table, column: str, value: Any, where: str) -> None:
    """Convert a value to a table's ``features``, ``labels``, ``times`` or ``weights``.

    Features are [n, d], or read in chunks, the others [n] or [n, 1]; dates become seconds since
    1970. None is none.
    """
    if value is None:
        return
    if isinstance(value, Features):
        table.features = value
        return
    if column == "labels":
        table.labels, table.classes = read_labels(value, where)
        return
    values = as_array(value, where)
    if column == "features":
        values = values[:, np.newaxis] if values.ndim == 1 else values
        if values.ndim != 2:
            raise GraphError(f"{where}: expected shape [n, d], given {list(values.shape)}")
        table.features = array_features(values)
        return
    values = _drop_column(values)
    given = f"given {values.dtype} of shape {list(values.shape)}"
    if column == "weights":
        if values.ndim != 1 or values.dtype.kind not in "fiub":
            raise GraphError(f"{where}: expected numbers of shape [edges], {given}")
        table.weights = values.astype(np.float32)
        return
    if values.dtype.kind == "f" and (np.isfinite(values) & (values == np.trunc(values))).all():
        # Integers become floats in a table that has floats in other columns.
        values = values.astype(np.int64)
    if values.dtype.kind == "M":
        if np.isnat(values).any():
            raise GraphError(f"{where}: of {int(np.isnat(values).argmax())}: expected a date")
        values = values.astype("datetime64[s]").astype(np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise GraphError(f"{where}: expected integers (of any unit) or dates, one each, {given}")
    table.times = values.astype(np.int64)


def read_labels(value: Any, where: str) -> tuple[_Read, dict[str, list[str]]]:
    """Read labels; return them, and names of classes by task.

    Integers of shape [n] or [n, 1] are classes (negative = unlabelled), and so are texts, which are
    numbered in sorted order (None or "" = unlabelled). Integers or booleans of shape [n, c] are
    multi-hot. Floats are float labels. A mapping has such labels by task.
    """
    if isinstance(value, Mapping):
        read = {str(task): read_labels(of, f"{where}: {task}") for task, of in value.items()}
        classes = {task: names[""] for task, (_, names) in read.items() if names}
        return join_tasks({task: labels for task, (labels, _) in read.items()}, where), classes
    texts = _as_texts(value)
    if texts is not None:
        names = sorted({text for text in texts if text})
        number = {name: place for place, name in enumerate(names)}
        classes_of = np.array([number[text] if text else -1 for text in texts], np.int64)
        labels = Labels("class", max(1, len(names)))
        return (labels, classes_of), {"": names} if names else {}
    values = _drop_column(as_array(value, where))
    if values.ndim not in (1, 2):
        raise GraphError(f"{where}: expected labels [n] or [n, c], given {list(values.shape)}")
    width = 1 if values.ndim == 1 else int(values.shape[1])
    if values.dtype.kind == "f":
        return (Labels("float", width), values.astype(np.float32)), {}
    if values.dtype.kind not in "iub":
        raise GraphError(f"{where}: expected integer or float labels, given {values.dtype}")
    if values.ndim == 2:
        if values.size and (values.min() < 0 or values.max() > 1):
            raise GraphError(f"{where}: expected multi-hot labels of 0 and 1")
        return (Labels("multi_hot", width), values.astype(np.uint8)), {}
    numbers = np.maximum(values.astype(np.int64), -1)
    return (Labels("class", max(1, int(numbers.max(initial=0)) + 1)), numbers), {}


def join_tasks(tasks: Mapping[str, _Read], where: str) -> _Read:
    """Put the labels of several tasks side by side."""
    lengths = {name: len(values) for name, (_, values) in tasks.items()}
    if len(set(lengths.values())) > 1:
        raise GraphError(f"{where}: expected as many labels of every task, given {lengths}")
    for name in tasks:
        check_name(name, "task", where)
    columns = [v if v.ndim == 2 else v[:, np.newaxis] for _, v in tasks.values()]
    joined = np.concatenate(columns, 1, dtype=np.float32)
    by_task = tuple((name, labels) for name, (labels, _) in tasks.items())
    return Labels("tasks", sum(labels.classes for _, labels in by_task), by_task), joined


def describe_classes(names: Sequence[str]) -> str:
    """Describe which numbers classes got, for a note."""
    first_classes = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:10]))
    return f"{len(names)} classes, in order of text: {first_classes}{', ...' * bool(names[10:])}"


def tables_from_arrays(
    name: str,
    edges: Any,
    columns: Mapping[str, Any],
    splits: Mapping[str, Any] | None,
    counts: Any,
    target: str | Triple | Sequence[Triple],
) -> GraphTables:
    """Convert the arguments of :meth:`hopper.GraphDirectory.from_arrays`; ``columns`` are
    "features", "edge features", "weights", "labels" and "times"."""
    reader = TableReader(name, "arrays", _WHERE)
    ends = {_relation(triple): of for triple, of in _by_key(edges, EDGES).items()}
    data: dict[Labelled, dict[str, Any]] = {relation: {} for relation in ends}
    for what, values in columns.items():
        of_edges = what in ("edge features", "weights")
        for key, value in _by_key(values, EDGES if of_edges else NODE).items():
            data.setdefault(_owner(key, ends, what), {})[what] = value
    for relation, pairs in ends.items():
        reader.add_edges(relation, pairs, data[relation], _COLUMNS_OF_EDGES)
    types = {end for relation in ends for end in (relation.src, relation.dst)}
    count_of, tables = _by_key(counts, NODE), reader.tables
    for node_type in sorted(types | {owner for owner in data if isinstance(owner, str)}):
        count = count_of.get(check_name(node_type, "node type", _WHERE))
        reader.add_nodes(node_type, data.get(node_type, {}), _COLUMNS, count)
    if not target:
        tables.choose_target(_WHERE)
    else:
        is_one = isinstance(target, str) or isinstance(target[0], str)
        targets: Sequence[Any] = [target] if is_one else target
        tables.targets = tuple(_owner(of, ends, "target") for of in targets)
    roots = sum(table.count for table in tables.target_tables)
    tables.divide_splits({
        check_name(split, "split", _WHERE): _read_split(ids, roots, f"{_WHERE}: split {split}")
        for split, ids in (splits or {}).items()
    })  # fmt: skip
    return tables


def _by_key(values: Any, only: Labelled) -> Mapping[Any, Any]:
    """Return values by node type or relation; a value by itself is that of the only one."""
    if isinstance(values, Mapping):
        return {key: value for key, value in values.items() if value is not None}
    return {} if values is None else {only: values}


def _relation(triple: Triple) -> Relation:
    if len(triple) != 3:
        raise GraphError(
            f"{_WHERE}: edges: expected (source, relation, destination), given {triple}"
        )
    return Relation(*(check_name(part, "relation", _WHERE) for part in triple))


def _owner(key: str | Triple, known: Mapping[Relation, Any], what: str) -> Labelled:
    """Return a node type, or a relation, which must have edges."""
    if isinstance(key, str):
        return key
    relation = _relation(key)
    if relation not in known:
        names = ", ".join(map(str, known))
        raise GraphError(f"{_WHERE}: {what}: expected a relation of {names}, given {relation}")
    return relation


def _read_split(ids: Any, roots: int, where: str) -> NDArray[Any]:
    """Read a split's ids, or a mask over all possible roots."""
    ids_or_mask = as_array(ids, where)
    is_mask = ids_or_mask.dtype == np.bool_
    if ids_or_mask.ndim != 1 or (is_mask and ids_or_mask.size != roots):
        raise GraphError(
            f"{where}: expected [n] ids, or a mask of {roots}, given {ids_or_mask.dtype} of "
            f"shape {list(ids_or_mask.shape)}"
        )
    split_ids = np.flatnonzero(ids_or_mask) if is_mask else np.unique(ids_or_mask)
    return split_ids if split_ids.size else np.empty(0, np.int64)


def _as_texts(values: Any) -> list[str | None] | None:
    """Convert an array or a list to texts, None where there is none; None if it holds others."""
    array: NDArray[Any] = np.empty(0) if hasattr(values, "detach") else np.asarray(values)
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
