"""Make a graph from arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopper.errors import GraphError
from hopper.graph.importers.read_arrays import (
    as_array,
    as_texts,
    join_tasks,
    number_texts,
    read_ends,
    read_features,
    read_labels,
    read_times,
    read_weights,
)
from hopper.graph.importers.tables import (
    GraphTables,
    Table,
    array_features,
    choose_target,
    count_nodes,
)
from hopper.graph.layout import check_name
from hopper.graph.schema import Labelled, Labels, Relation

NODE: Final = "node"
"""Name of the only node type."""
_EDGES: Final = (NODE, "edge", NODE)
_WHERE: Final = "from_arrays"

Triple = tuple[str, str, str]


def tables_from_arrays(
    edges: ArrayLike | Mapping[Triple, ArrayLike],
    features: ArrayLike | Mapping[str, ArrayLike] | None,
    labels: ArrayLike | Mapping[str | Triple, ArrayLike | Mapping[str, ArrayLike]] | None,
    splits: Mapping[str, ArrayLike] | None,
    edge_features: ArrayLike | Mapping[Triple, ArrayLike] | None,
    edge_weights: ArrayLike | Mapping[Triple, ArrayLike] | None,
    times: ArrayLike | Mapping[str | Triple, ArrayLike] | None,
    counts: int | Mapping[str, int] | None,
    target: str | Triple | Sequence[Triple],
    name: str,
) -> GraphTables:
    """Convert the arguments of :meth:`hopper.GraphDirectory.from_arrays`."""
    tables = GraphTables(name, "arrays")
    for triple, ends in _by_key(edges, _EDGES).items():
        field = f"{_WHERE}: edges of {'/'.join(triple)}"
        tables.edges[_relation(triple)] = read_ends(as_array(ends, field), field)
    for key, rows in _by_key(features, NODE).items():
        field = f"{_WHERE}: features of {key}"
        array = as_array(rows, field)
        if array.ndim != 2:
            raise GraphError(f"{field}: expected shape [n, d], given {list(array.shape)}")
        _table(tables, key).features = array_features(array)
    for key, rows in _by_key(edge_features, _EDGES).items():
        field = f"{_WHERE}: edge features of {_relation(key)}"
        _table(tables, key).features = read_features(as_array(rows, field), field)
    for key, weights in _by_key(edge_weights, _EDGES).items():
        field = f"{_WHERE}: weights of {_relation(key)}"
        _table(tables, key).weights = read_weights(as_array(weights, field), field)
    for key, values in _by_key(labels, NODE).items():
        _add_labels(_table(tables, key), values, f"{_WHERE}: labels of {_owner(key)}")
    for key, values in _by_key(times, NODE).items():
        field = f"{_WHERE}: times of {_owner(key)}"
        is_dates = np.asarray(values).dtype.kind == "M"
        array = np.asarray(values) if is_dates else as_array(values, field)
        _table(tables, key).times = read_times(array, field)
    _count(tables, _by_key(counts, NODE))
    _set_target(tables, target)
    roots = sum(table.count for table in tables.target_tables)
    tables.divide_splits({
        check_name(split, "split", _WHERE): _read_split(ids, roots, f"{_WHERE}: split {split}")
        for split, ids in (splits or {}).items()
    })  # fmt: skip
    return tables


def _by_key(values: Any, only: Any) -> Mapping[Any, Any]:
    """Return values by node type or relation; a value by itself is that of the only one."""
    if isinstance(values, Mapping):
        return {key: value for key, value in values.items() if value is not None}
    return {} if values is None else {only: values}


def _table(tables: GraphTables, key: str | Triple) -> Table:
    """Return the table of a node type, which is made where it is missing, or of a relation."""
    owner = _owner(key)
    if isinstance(owner, str):
        return tables.nodes.setdefault(owner, Table(-1))
    if owner not in tables.edges:
        names = ", ".join(map(str, tables.edges))
        raise GraphError(f"{_WHERE}: {owner}: expected a relation of {names}")
    return tables.edges[owner]


def _owner(key: str | Triple) -> Labelled:
    return key if isinstance(key, str) else _relation(key)


def _relation(triple: Triple) -> Relation:
    if len(triple) != 3:
        raise GraphError(
            f"{_WHERE}: edges: expected (source, relation, destination), given {triple}"
        )
    return Relation(*(check_name(part, "relation", _WHERE) for part in triple))


def _add_labels(table: Table, values: ArrayLike | Mapping[str, ArrayLike], where: str) -> None:
    if not isinstance(values, Mapping):
        table.labels, names = _read_labels(values, where)
        table.classes = {"": names} if names else {}
        return
    tasks = {str(task): _read_labels(of, f"{where}: {task}") for task, of in values.items()}
    table.labels = join_tasks({task: read for task, (read, _) in tasks.items()}, where)
    table.classes = {task: names for task, (_, names) in tasks.items() if names}


def _read_labels(values: ArrayLike, where: str) -> tuple[tuple[Labels, NDArray[Any]], list[str]]:
    """Read labels; return them, and the names of classes that are given as texts."""
    texts = as_texts(values)
    if texts is not None:
        return number_texts(texts)
    return read_labels(as_array(values, where), where), []


def _read_split(ids: ArrayLike, roots: int, where: str) -> NDArray[Any]:
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


def _count(tables: GraphTables, counts: Mapping[str, int]) -> None:
    """Set every type's number of nodes: that of ``counts``, or of its rows, or of edges' ids."""
    types = {end for relation in tables.edges for end in (relation.src, relation.dst)}
    found = {name: tables.nodes.get(name) or Table(-1) for name in sorted(types | {*tables.nodes})}
    for name, table in found.items():
        if table.features is not None:
            table.count = table.features.shape[0]
        elif table.labels is not None:
            table.count = len(table.labels[1])
        elif table.times is not None:
            table.count = len(table.times)
        else:
            table.count = count_nodes(tables, name)
        table.count = counts.get(check_name(name, "node type", _WHERE), table.count)
    tables.nodes = found


def _set_target(tables: GraphTables, target: str | Triple | Sequence[Triple]) -> None:
    """Set what is predicted: a node type, one relation or several, or the only candidate."""
    if not target:
        choose_target(tables, _WHERE)
    elif isinstance(target, str):
        tables.targets = (target,)
    else:
        triples: Sequence[Any] = [target] if isinstance(target[0], str) else target
        tables.targets = tuple(_relation(triple) for triple in triples)
        for relation in tables.targets:
            if relation not in tables.edges:
                known = ", ".join(map(str, tables.edges))
                raise GraphError(
                    f"{_WHERE}: target: expected a relation of {known}, given {relation}"
                )
