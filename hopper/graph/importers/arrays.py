"""Make a graph from arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopper.errors import GraphError
from hopper.graph.importers.attributes import as_array
from hopper.graph.importers.feature_columns import as_texts, number_texts
from hopper.graph.importers.tables import (
    ArrayFeatures,
    GraphTables,
    edge_ids_array,
    find_labelled,
    join_tasks,
    read_labels,
    read_times,
    read_weights,
    target_relations,
)
from hopper.graph.layout import check_name
from hopper.graph.schema import Labelled, Labels, Relation

NODE: Final = "node"
"""Name of the only node type."""
_EDGES: Final = Relation(NODE, "edge", NODE)
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
    """Convert the arguments of :meth:`hopper.GraphDirectory.from_arrays`.

    Raises
    ------
    GraphError: an array has a wrong dtype or shape. The text names it.
    """
    by_relation = edges if isinstance(edges, Mapping) else {_EDGES: edges}
    tables = GraphTables(name, "arrays", "", {}, {})
    for triple, ends in by_relation.items():
        tables.edges[_relation(triple)] = _read_ends(ends, f"{_WHERE}: edges of {'/'.join(triple)}")
    for node_type, rows in _by_type(features).items():
        tables.features[node_type] = _read_features(rows, f"{_WHERE}: features of {node_type}")
    for key, values in (labels if isinstance(labels, Mapping) else _by_type(labels)).items():
        _add_labels(tables, key if isinstance(key, str) else _relation(key), values)
    for relation, rows in _by_relation(edge_features).items():
        table = as_array(rows, f"{_WHERE}: edge features of {relation}")
        tables.edge_features[relation] = ArrayFeatures(
            table[:, np.newaxis] if table.ndim == 1 else table
        )
    for relation, weights in _by_relation(edge_weights).items():
        where = f"{_WHERE}: weights of {relation}"
        tables.weights[relation] = read_weights(as_array(weights, where), where)
    for key, of_owner in (times if isinstance(times, Mapping) else _by_type(times)).items():
        owner: Labelled = key if isinstance(key, str) else _relation(key)
        tables.times[owner] = _read_times(of_owner, f"{_WHERE}: times of {owner}")
    _set_counts(tables, counts if isinstance(counts, Mapping) else {NODE: counts})
    _set_target(tables, target)
    for split, ids in (splits or {}).items():
        split_ids = _read_split(ids, _count_possible_roots(tables), f"{_WHERE}: split {split}")
        tables.splits[check_name(split, "split", _WHERE)] = split_ids
    return tables


def _by_type(arrays: ArrayLike | Mapping[str, ArrayLike] | None) -> Mapping[str, ArrayLike]:
    if arrays is None:
        return {}
    return arrays if isinstance(arrays, Mapping) else {NODE: arrays}


def _by_relation(
    arrays: ArrayLike | Mapping[Triple, ArrayLike] | None,
) -> dict[Relation, ArrayLike]:
    by_triple = arrays if isinstance(arrays, Mapping) else {_EDGES: arrays}
    return {_relation(triple): array for triple, array in by_triple.items() if array is not None}


def _add_labels(
    tables: GraphTables, owner: Labelled, values: ArrayLike | Mapping[str, ArrayLike]
) -> None:
    where = f"{_WHERE}: labels of {owner}"
    if isinstance(values, Mapping):
        tasks = {
            str(task): _read_labels(of_task, f"{where}: {task}") for task, of_task in values.items()
        }
        tables.labels[owner] = join_tasks({task: read for task, (read, _) in tasks.items()}, where)
        tables.task_names[owner] = {task: names for task, (_, names) in tasks.items() if names}
        return
    tables.labels[owner], names = _read_labels(values, where)
    if names:
        tables.label_names[owner] = names


def _read_labels(values: ArrayLike, where: str) -> tuple[tuple[Labels, NDArray[Any]], list[str]]:
    """Read labels; return them, and the names of classes that are given as texts."""
    texts = as_texts(values)
    if texts is None:
        return read_labels(as_array(values, where), where), []
    classes, names = number_texts(texts)
    return (Labels("class", max(1, len(names))), classes), names


def _relation(triple: Triple) -> Relation:
    if len(triple) != 3:
        raise GraphError(
            f"{_WHERE}: edges: expected (source, relation, destination), given {triple}"
        )
    return Relation(*(check_name(part, "relation", _WHERE) for part in triple))


def _read_ends(edges: ArrayLike, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    ends = as_array(edges, where)
    if ends.ndim != 2 or ends.shape[0] != 2 or not np.issubdtype(ends.dtype, np.integer):
        raise GraphError(
            f"{where}: expected integers of shape [2, edges], sources first; given {ends.dtype} of "
            f"shape {list(ends.shape)}"
        )
    return edge_ids_array(ends[0]), edge_ids_array(ends[1])


def _read_features(rows: ArrayLike, where: str) -> ArrayFeatures:
    table = as_array(rows, where)
    if table.ndim != 2:
        raise GraphError(f"{where}: expected shape [n, d], given {list(table.shape)}")
    return ArrayFeatures(table)


def _read_times(times: ArrayLike, where: str) -> NDArray[np.int64]:
    is_dates = np.asarray(times).dtype.kind == "M"
    return read_times(np.asarray(times) if is_dates else as_array(times, where), where)


def _read_split(ids: ArrayLike, roots: int, where: str) -> NDArray[Any]:
    """Read a split's ids, or a mask over all possible roots.

    Parameters
    ----------
    roots: how many nodes or edges can be roots.
    """
    ids_or_mask = as_array(ids, where)
    is_mask = ids_or_mask.dtype == np.bool_
    if ids_or_mask.ndim != 1 or (is_mask and ids_or_mask.size != roots):
        raise GraphError(
            f"{where}: expected [n] ids, or a mask of {roots}, given {ids_or_mask.dtype} of "
            f"shape {list(ids_or_mask.shape)}"
        )
    split_ids = np.flatnonzero(ids_or_mask) if is_mask else np.unique(ids_or_mask)
    return split_ids if split_ids.size else np.empty(0, np.int64)


def _count_possible_roots(tables: GraphTables) -> int:
    """Count the nodes or edges of the target."""
    if isinstance(tables.target, str):
        return tables.counts.get(tables.target, 0)
    return sum(tables.edges[relation][0].size for relation in target_relations(tables))


def _set_counts(tables: GraphTables, counts: Mapping[str, int | None]) -> None:
    """Set every type's number of nodes: that of ``counts``, or of its rows, or of edges' ids."""
    types = {end for relation in tables.edges for end in (relation.src, relation.dst)}
    types |= {owner for owner in (*tables.labels, *tables.times) if isinstance(owner, str)}
    for node_type in sorted(types | set(tables.features)):
        sizes = [
            int(ids.max()) + 1
            for relation, ends in tables.edges.items()
            for end, ids in zip((relation.src, relation.dst), ends, strict=True)
            if end == node_type and ids.size
        ]
        if node_type in tables.features:
            sizes = [tables.features[node_type].shape[0]]
        elif node_type in tables.labels:
            sizes = [len(tables.labels[node_type][1])]
        elif node_type in tables.times:
            sizes = [len(tables.times[node_type])]
        count = counts.get(node_type)
        tables.counts[check_name(node_type, "node type", _WHERE)] = (
            max(sizes, default=0) if count is None else count
        )


def _set_target(tables: GraphTables, target: str | Triple | Sequence[Triple]) -> None:
    """Set what is predicted: a node type, one relation or several, or the only candidate."""
    if not target:
        tables.target = _find_only_target(tables)
    elif isinstance(target, str):
        tables.target = target
    else:
        # One triple, or several.
        triples = [target] if isinstance(target[0], str) else target
        relations = (_find_target(triple, tables) for triple in triples)  # type: ignore[arg-type]
        tables.target, *also = relations
        tables.also = tuple(also)


def _find_target(triple: Triple, tables: GraphTables) -> Relation:
    relation = _relation(triple)
    if relation not in tables.edges:
        known = ", ".join(map(str, tables.edges))
        raise GraphError(f"{_WHERE}: target: expected a relation of {known}, given {relation}")
    return relation


def _find_only_target(tables: GraphTables) -> Labelled:
    candidates: list[Labelled] = list(find_labelled(tables) or tables.counts)
    if len(candidates) != 1:
        raise GraphError(
            f"{_WHERE}: target: expected the node type or the relation that is predicted, one of "
            f"{', '.join(map(str, candidates))}"
        )
    return candidates[0]
