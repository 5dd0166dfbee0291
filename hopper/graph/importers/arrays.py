"""A graph from arrays that are at hand."""

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
    join_tasks,
    labelled,
    read_labels,
    read_times,
    read_weights,
    target_relations,
)
from hopper.graph.layout import check_name
from hopper.graph.schema import Labelled, Labels, Relation

NODE: Final = "node"
"""the node type of a graph of one"""
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
    """What :meth:`hopper.GraphDirectory.from_arrays` describes.

    Raises
    ------
    GraphError: an array is not what it should be; names it.
    """
    by_relation = edges if isinstance(edges, Mapping) else {_EDGES: edges}
    tables = GraphTables(name, "arrays", "", {}, {})
    for triple, ends in by_relation.items():
        tables.edges[_relation(triple)] = _ends(ends, f"{_WHERE}: edges of {'/'.join(triple)}")
    for node_type, rows in _by_type(features).items():
        table = as_array(rows, f"{_WHERE}: features of {node_type}")
        if table.ndim != 2:
            raise GraphError(
                f"{_WHERE}: features of {node_type}: expected shape [n, d], given "
                f"{list(table.shape)}"
            )
        tables.features[node_type] = ArrayFeatures(table)
    for key, values in (labels if isinstance(labels, Mapping) else _by_type(labels)).items():
        _add_labels(tables, key if isinstance(key, str) else _relation(key), values)
    for relation, given in _by_relation(edge_features).items():
        table = as_array(given, f"{_WHERE}: edge features of {relation}")
        tables.edge_features[relation] = ArrayFeatures(
            table[:, np.newaxis] if table.ndim == 1 else table
        )
    for relation, given in _by_relation(edge_weights).items():
        where = f"{_WHERE}: weights of {relation}"
        tables.weights[relation] = read_weights(as_array(given, where), where)
    for key, given in (times if isinstance(times, Mapping) else _by_type(times)).items():
        owner: Labelled = key if isinstance(key, str) else _relation(key)
        where = f"{_WHERE}: times of {owner}"
        is_dates = np.asarray(given).dtype.kind == "M"
        tables.times[owner] = read_times(
            np.asarray(given) if is_dates else as_array(given, where), where
        )
    _count(tables, counts if isinstance(counts, Mapping) else {NODE: counts})
    if target and not isinstance(target, str):
        # One triple, or several.
        triples = [target] if isinstance(target[0], str) else target
        tables.target, *also = (_known(each, tables) for each in triples)  # type: ignore[arg-type]
        tables.also = tuple(also)
    else:
        tables.target = target if isinstance(target, str) and target else _only_target(tables)
    for split, ids in (splits or {}).items():
        where = f"{_WHERE}: split {split}"
        found = as_array(ids, where)
        count = (
            tables.counts.get(tables.target, 0)
            if isinstance(tables.target, str)
            else sum(tables.edges[each][0].size for each in target_relations(tables))
        )
        is_mask = found.dtype == np.bool_
        if found.ndim != 1 or (is_mask and found.size != count):
            raise GraphError(
                f"{where}: expected [n] ids, or a mask of {count}, given {found.dtype} of "
                f"shape {list(found.shape)}"
            )
        chosen = np.flatnonzero(found) if is_mask else np.unique(found)
        tables.splits[check_name(split, "split", _WHERE)] = (
            chosen if chosen.size else np.empty(0, np.int64)
        )
    return tables


def _by_type(given: ArrayLike | Mapping[str, ArrayLike] | None) -> Mapping[str, ArrayLike]:
    if given is None:
        return {}
    return given if isinstance(given, Mapping) else {NODE: given}


def _by_relation(
    given: ArrayLike | Mapping[Triple, ArrayLike] | None,
) -> dict[Relation, ArrayLike]:
    by_triple = given if isinstance(given, Mapping) else {_EDGES: given}
    return {_relation(each): own for each, own in by_triple.items() if own is not None}


def _add_labels(
    tables: GraphTables, owner: Labelled, values: ArrayLike | Mapping[str, ArrayLike]
) -> None:
    where = f"{_WHERE}: labels of {owner}"
    if isinstance(values, Mapping):
        read = {str(name): _read_labels(own, f"{where}: {name}") for name, own in values.items()}
        tables.labels[owner] = join_tasks({name: own for name, (own, _) in read.items()}, where)
        tables.task_names[owner] = {name: names for name, (_, names) in read.items() if names}
        return
    tables.labels[owner], names = _read_labels(values, where)
    if names:
        tables.label_names[owner] = names


def _read_labels(values: ArrayLike, where: str) -> tuple[tuple[Labels, NDArray[Any]], list[str]]:
    """Labels, and what classes are called that have no numbers."""
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


def _known(triple: Triple, tables: GraphTables) -> Relation:
    relation = _relation(triple)
    if relation not in tables.edges:
        known = ", ".join(map(str, tables.edges))
        raise GraphError(f"{_WHERE}: target: expected a relation of {known}, given {relation}")
    return relation


def _ends(given: ArrayLike, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    ends = as_array(given, where)
    if ends.ndim != 2 or ends.shape[0] != 2 or not np.issubdtype(ends.dtype, np.integer):
        raise GraphError(
            f"{where}: expected integers of shape [2, edges], sources first; given {ends.dtype} of "
            f"shape {list(ends.shape)}"
        )
    return edge_ids_array(ends[0]), edge_ids_array(ends[1])


def _count(tables: GraphTables, told: Mapping[str, int | None]) -> None:
    """The number of nodes of every type: as told, or as many as rows and edges name."""
    types = {end for relation in tables.edges for end in (relation.src, relation.dst)}
    types |= {owner for owner in (*tables.labels, *tables.times) if isinstance(owner, str)}
    for node_type in sorted(types | set(tables.features)):
        named = [
            int(ids.max()) + 1
            for relation, ends in tables.edges.items()
            for end, ids in zip((relation.src, relation.dst), ends, strict=True)
            if end == node_type and ids.size
        ]
        if node_type in tables.features:
            named = [tables.features[node_type].shape[0]]
        elif node_type in tables.labels:
            named = [len(tables.labels[node_type][1])]
        elif node_type in tables.times:
            named = [len(tables.times[node_type])]
        count = told.get(node_type)
        tables.counts[check_name(node_type, "node type", _WHERE)] = (
            max(named, default=0) if count is None else count
        )


def _only_target(tables: GraphTables) -> Labelled:
    candidates: list[Labelled] = list(labelled(tables) or tables.counts)
    if len(candidates) != 1:
        raise GraphError(
            f"{_WHERE}: target: expected the node type or the relation that is predicted, one of "
            f"{', '.join(map(str, candidates))}"
        )
    return candidates[0]
