"""Check a graph that an importer has read, whatever its format, before it is converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces, release_pages
from hopper.graph.check_values import check_weights, is_labelled
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.tables import (
    FeatureTable,
    GraphTables,
    feature_tables,
    target_relations,
)
from hopper.graph.schema import Labelled, Relation

_MOST_NODES: Final = 2**48
"""Limit above any graph, at which ids times widths still fit in 64 bits."""
_EXACT_IN_FLOAT32: Final = 2**24
_IDS: Final = 1 << 18
"""Number of ids whose labels are looked up at once."""


def check_tables(tables: GraphTables) -> None:
    """Check counts, edges, splits and the dtypes of features; note dtypes that will change.

    An id that names a node or an edge that does not exist, or features that are not numbers, are
    problems of the tables. The text names the field.
    """
    attempt = tables.problems.attempt
    for name, count in tables.counts.items():
        attempt(name, "count", _check_count, name, count)
        if tables.problems.has_failed(name, "count"):
            # All else is compared with it.
            return
    for relation, ends in tables.edges.items():
        attempt(relation, "edges", _check_ends, tables, relation, ends)
    for owner, (_, values) in tables.labels.items():
        if isinstance(owner, Relation):
            attempt(owner, "labels", _check_edge_data, tables, owner, values, "labels")
    for relation, weights in tables.weights.items():
        attempt(relation, "weights", _check_edge_data, tables, relation, weights, "weights")
        attempt(relation, "weights", check_weights, weights, f"weights of {relation}")
    for owner, times in tables.times.items():
        if isinstance(owner, Relation):
            attempt(owner, "times", _check_edge_data, tables, owner, times, "times")
        else:
            attempt(owner, "times", _check_node_times, tables, owner, times)
    for name, ids in tables.splits.items():
        attempt(name, "split", _check_split, tables, name, ids)
    for owner, where, table in feature_tables(tables):
        attempt(owner, where, _check_dtype, table, where, tables.notes)


def check_labels_of_training(tables: GraphTables, *, leave_out: bool) -> None:
    """Check that all nodes or edges of the split ``train`` have labels, if any has.

    Those without labels in other splits are predicted, and not counted in scores.

    Parameters
    ----------
    leave_out: take those without a label out of the split, and note it, instead of refusing them.
    """
    owners: Sequence[Labelled] = target_relations(tables) or [tables.target]
    ids = tables.splits.get("train")
    if ids is None or any(owner not in tables.labels for owner in owners):
        return
    if tables.problems.has_failed("train", "split"):
        return
    pieces = [_find_labelled(tables, owners, piece) for _, piece in iter_pieces(ids, _IDS)]
    has_label = np.concatenate([np.empty(0, np.bool_), *pieces])
    if has_label.all():
        return
    what = "edges" if target_relations(tables) else "nodes"
    where = f"labels of {', '.join(map(str, owners))}"
    count = f"{int((~has_label).sum()):,} of {ids.size:,} {what} of the split train"
    if leave_out:
        tables.splits["train"] = ids[has_label]
        tables.notes.append(f"{where}: {count} have none, and were left out of it")
        return
    tables.problems.attempt(
        where, "labels", _refuse_unlabelled, tables, where, count, ids[~has_label]
    )


def _find_labelled(
    tables: GraphTables, owners: Sequence[Labelled], ids: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return whether each of some nodes, or edges of relations one after another, has a label."""
    has_label, start = np.ones(len(ids), np.bool_), 0
    for owner in owners:
        labels, values = tables.labels[owner]
        own = (ids >= start) & (ids < start + len(values))
        has_label[own] = is_labelled(labels, values[ids[own] - start])
        release_pages(values)
        start += len(values)
    return has_label


def _refuse_unlabelled(
    tables: GraphTables, where: str, count: str, ids: NDArray[np.integer[Any]]
) -> None:
    """Refuse nodes or edges of the training split without labels."""
    names = tables.names.get(str(tables.target))
    examples = ", ".join(str(row) if names is None else names[row] for row in ids[:5].tolist())
    raise GraphError(
        f"{where}: expected one for all that is trained on, but {count} have none ({examples}"
        f"{', ...' if ids.size > 5 else ''}): leave them out of the split, or let "
        "--unlabelled-as-missing do it"
    )


def check_finite(
    rows: NDArray[Any], first: int, where: str, names: Sequence[str], problems: Problems
) -> None:
    """Check that features are finite as they will be written.

    The first number that is not finite, of each column where columns have names, is a problem. The
    text names row and column.

    Parameters
    ----------
    rows: [n, columns], the rows from ``first`` on, as they will be written.
    names: the source's names of the columns; empty if it has none.
    """
    # One pass without a temporary array: a sum is finite only if all of its terms are.
    with np.errstate(all="ignore"):
        if not rows.size or np.isfinite(np.sum(rows, dtype=np.float64)):
            return
    bad = ~np.isfinite(rows)
    parts = [slice(None)] if bad.any() else []
    if names:
        parts = [slice(column, column + 1) for column in np.flatnonzero(bad.any(0)).tolist()]
    for part in parts:
        found = np.argwhere(bad[:, part])
        row, column = int(found[0, 0]), int(found[0, 1]) + (part.start or 0)
        name = names[column] if names else str(column)
        place = f"{where}: row {first + row}, column {name}"
        field = name if names else "all columns"
        problems.attempt(where, field, _refuse_number, rows[row, column], len(found), place)


def _refuse_number(number: Any, count: int, where: str) -> None:
    """Refuse a number that is not finite, one of ``count``."""
    raise GraphError(
        f"{where}: expected a finite number, given {number} (one of {count:,}); what is missing "
        "has to be filled in before it can be learned from: --missing mean or zero does it"
    )


def _check_count(name: str, count: int) -> None:
    if not 0 <= count <= _MOST_NODES:
        raise GraphError(f"nodes of {name}: expected a count in [0, 2**48], given {count}")


def _check_node_times(tables: GraphTables, node_type: str, times: NDArray[Any]) -> None:
    if len(times) != tables.counts.get(node_type):
        raise GraphError(
            f"times of {node_type}: expected {tables.counts.get(node_type)}, one for each node, "
            f"given {len(times)}"
        )


def _check_ends(
    tables: GraphTables, relation: Relation, ends: tuple[NDArray[Any], NDArray[Any]]
) -> None:
    for end, node_type, ids in zip(("src", "dst"), (relation.src, relation.dst), ends, strict=True):
        if node_type not in tables.counts:
            raise GraphError(
                f"edges of {relation}: expected node types of {sorted(tables.counts)}, given "
                f"{node_type!r}"
            )
        count = tables.counts[node_type]
        for first, piece in iter_pieces(ids):
            if not 0 <= piece.min() <= piece.max() < count:
                index = int(np.flatnonzero((piece < 0) | (piece >= count))[0])
                raise GraphError(
                    f"edges of {relation}: {end} of edge {first + index}: expected an id of "
                    f"{node_type} in [0, {count}), given {piece[index]}"
                )


def _check_edge_data(
    tables: GraphTables, relation: Relation, values: NDArray[Any], what: str
) -> None:
    if relation not in tables.edges:
        names = ", ".join(map(str, tables.edges))
        raise GraphError(f"{what} of {relation}: expected a relation of {names}")
    edges = tables.edges[relation][0].size
    if len(values) != edges:
        raise GraphError(
            f"{what} of {relation}: expected {edges}, one for each edge, given {len(values)}"
        )


def _check_split(tables: GraphTables, name: str, ids: NDArray[Any]) -> None:
    target = tables.target
    if isinstance(target, str):
        if target not in tables.counts:
            # The check of the schema refuses it, and names it.
            return
        what, count = f"nodes of {target}", tables.counts[target]
    else:
        relations = target_relations(tables)
        what = f"edges of {', '.join(map(str, relations))}"
        count = sum(tables.edges[relation][0].size for relation in relations)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise GraphError(
            f"split {name}: expected integers of shape [n], given {ids.dtype} of shape "
            f"{list(ids.shape)}"
        )
    bounds = [(int(piece.min()), int(piece.max())) for _, piece in iter_pieces(ids)]
    low, high = min((a for a, _ in bounds), default=0), max((b for _, b in bounds), default=-1)
    if not 0 <= low <= high + 1 <= count:
        raise GraphError(
            f"split {name}: expected ids of {what} in [0, {count}), given {low} to {high}"
        )


def _check_dtype(table: FeatureTable, where: str, notes: list[str]) -> None:
    dtype = table.dtype
    if np.issubdtype(dtype, np.complexfloating) or dtype.kind not in "fiub":
        raise GraphError(f"{where}: expected numbers, given {dtype}: turn them into numbers first")
    if dtype.kind in "iu" and np.iinfo(dtype).max > _EXACT_IN_FLOAT32:
        notes.append(f"{where}: {dtype} becomes float32, which is exact up to 16,777,216")
    elif dtype.kind == "b":
        notes.append(f"{where}: true and false become 1 and 0")
