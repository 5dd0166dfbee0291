"""Check a graph that an importer has read, whatever its format, before it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces, release_pages
from hopper.graph.check_values import check_weights, is_labelled
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.tables import Features, GraphTables, Table
from hopper.graph.schema import Labelled, Relation

_MOST_NODES: Final = 2**48
"""Limit above any graph, at which ids times widths still fit in 64 bits."""
_EXACT_IN_FLOAT32: Final = 2**24
_IDS: Final = 1 << 18
"""Number of ids whose labels are looked up at once."""


def check_tables(tables: GraphTables) -> None:
    """Check counts, ends of edges, lengths of columns, and the dtypes of features.

    What is wrong becomes a problem of the tables, whose text names the field. Dtypes that will
    change are noted.
    """
    attempt = tables.problems.attempt
    for name, table in tables.nodes.items():
        attempt(name, "count", _check_count, name, table.count)
        if tables.problems.has_failed(name, "count"):
            # All else is compared with it.
            return
    for relation in tables.edges:
        attempt(relation, "edges", _check_ends, tables, relation)
    for owner, table in tables.all.items():
        columns = {"labels": table.labels and table.labels[1], "weights": table.weights}
        for column, values in (columns | {"times": table.times}).items():
            # The check of the schema compares labels of nodes with their number.
            if values is not None and (column != "labels" or isinstance(owner, Relation)):
                attempt(owner, column, _check_length, owner, table, values, column)
        if table.weights is not None:
            attempt(owner, "weights", check_weights, table.weights, f"weights of {owner}")
    for owner, where, features in iter_features(tables):
        attempt(owner, where, _check_dtype, features, where, tables.notes)


def iter_features(tables: GraphTables) -> Iterator[tuple[Labelled, str, Features]]:
    """Iterate over features of nodes and edges: of what they are, in words too, and the table."""
    for owner, table in tables.all.items():
        if table.features is not None:
            edge = "edge " if isinstance(owner, Relation) else ""
            yield owner, f"{edge}features of {owner}", table.features


def check_labels_of_training(tables: GraphTables, *, leave_out: bool) -> None:
    """Check that all nodes or edges of the split ``train`` have labels, if any has.

    Those without labels in other splits are predicted, and not counted in scores.
    """
    targets, problems = tables.target_tables, tables.problems
    if not targets or any(table.labels is None for table in targets):
        return
    if problems.has_failed("train", "split"):
        return
    missing, total = list[int](), 0
    count, first = 0, 0
    for table in targets:
        ids = (table.splits or {}).get("train")
        if ids is not None:
            has_label = _has_label(table, ids)
            total, count = total + ids.size, count + int((~has_label).sum())
            missing += (ids[~has_label][:6] + first).tolist()
            if leave_out and table.splits is not None:
                table.splits["train"] = ids[has_label]
        first += table.count
    if not count:
        return
    what = "edges" if tables.target_relations else "nodes"
    where = f"labels of {', '.join(map(str, tables.targets))}"
    told = f"{count:,} of {total:,} {what} of the split train"
    if leave_out:
        tables.notes.append(f"{where}: {told} have none, and were left out of it")
        return
    names = targets[0].names
    examples = ", ".join(str(row) if names is None else names[row] for row in missing[:5])
    problems.attempt(where, "labels", _refuse, (
        f"{where}: expected one for all that is trained on, but {told} have none ({examples}"
        f"{', ...' if count > 5 else ''}): leave them out of the split, or let "
        "--unlabelled-as-missing do it"
    ))  # fmt: skip


def _has_label(table: Table, ids: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each of some rows has a label."""
    assert table.labels is not None
    labels, values = table.labels
    has_label = np.empty(ids.size, np.bool_)
    for first, piece in iter_pieces(ids, _IDS):
        has_label[first : first + piece.size] = is_labelled(labels, values[piece])
        release_pages(values)
    return has_label


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
        problems.attempt(where, name if names else "all columns", _refuse, (
            f"{where}: row {first + row}, column {name}: expected a finite number, given "
            f"{rows[row, column]} (one of {len(found):,}); what is missing has to be filled in "
            "before it can be learned from: --missing mean or zero does it"
        ))  # fmt: skip


def _refuse(text: str) -> None:
    raise GraphError(text)


def _check_count(name: str, count: int) -> None:
    if not 0 <= count <= _MOST_NODES:
        raise GraphError(f"nodes of {name}: expected a count in [0, 2**48], given {count}")


def _check_ends(tables: GraphTables, relation: Relation) -> None:
    table = tables.edges[relation]
    for end, node_type, ids in (("src", relation.src, table.src), ("dst", relation.dst, table.dst)):
        if node_type not in tables.nodes:
            raise GraphError(
                f"edges of {relation}: expected node types of {sorted(tables.nodes)}, given "
                f"{node_type!r}"
            )
        count = tables.nodes[node_type].count
        for first, piece in iter_pieces(ids):
            if not 0 <= piece.min() <= piece.max() < count:
                index = int(np.flatnonzero((piece < 0) | (piece >= count))[0])
                raise GraphError(
                    f"edges of {relation}: {end} of edge {first + index}: expected an id of "
                    f"{node_type} in [0, {count}), given {piece[index]}"
                )


def _check_length(owner: Labelled, table: Table, values: NDArray[Any], column: str) -> None:
    if len(values) != table.count:
        what = "edge" if isinstance(owner, Relation) else "node"
        raise GraphError(
            f"{column} of {owner}: expected {table.count}, one for each {what}, given {len(values)}"
        )


def _check_dtype(table: Features, where: str, notes: list[str]) -> None:
    dtype = table.dtype
    if np.issubdtype(dtype, np.complexfloating) or dtype.kind not in "fiub":
        raise GraphError(f"{where}: expected numbers, given {dtype}: turn them into numbers first")
    if dtype.kind in "iu" and np.iinfo(dtype).max > _EXACT_IN_FLOAT32:
        notes.append(f"{where}: {dtype} becomes float32, which is exact up to 16,777,216")
    elif dtype.kind == "b":
        notes.append(f"{where}: true and false become 1 and 0")
