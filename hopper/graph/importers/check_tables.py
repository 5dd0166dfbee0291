"""Check a graph that an importer has read, whatever its format, before it is converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces
from hopper.graph.check_values import check_weights
from hopper.graph.importers.tables import FeatureTable, GraphTables, target_relations
from hopper.graph.schema import Relation

_MOST_NODES: Final = 2**48
"""Limit above any graph, at which ids times widths still fit in 64 bits."""
_EXACT_IN_FLOAT32: Final = 2**24


def check_tables(tables: GraphTables) -> None:
    """Check counts, edges, splits and the dtypes of features; note dtypes that will change.

    Raises
    ------
    GraphError: an id names a node or an edge that does not exist, or features are not numbers. The
        text names the field.
    """
    for name, count in tables.counts.items():
        if not 0 <= count <= _MOST_NODES:
            raise GraphError(f"nodes of {name}: expected a count in [0, 2**48], given {count}")
    for relation, ends in tables.edges.items():
        _check_ends(tables, relation, ends)
    for owner, (_, values) in tables.labels.items():
        if isinstance(owner, Relation):
            _check_edge_data(tables, owner, values, "labels")
    for relation, weights in tables.weights.items():
        _check_edge_data(tables, relation, weights, "weights")
        check_weights(weights, f"weights of {relation}")
    for owner, times in tables.times.items():
        if isinstance(owner, Relation):
            _check_edge_data(tables, owner, times, "times")
        elif len(times) != tables.counts.get(owner):
            raise GraphError(
                f"times of {owner}: expected {tables.counts.get(owner)}, one for each node, given "
                f"{len(times)}"
            )
    for name, ids in tables.splits.items():
        _check_split(tables, name, ids)
    for key, table in (*tables.features.items(), *tables.edge_features.items()):
        kind = "edge features" if isinstance(key, Relation) else "features"
        _check_dtype(table, f"{kind} of {key}", tables.notes)


def check_finite(rows: NDArray[Any], first: int, where: str, names: Sequence[str] = ()) -> None:
    """Check that features are finite as they will be written.

    Parameters
    ----------
    rows: [n, columns], the rows from ``first`` on, as they will be written.
    names: the source's names of the columns, if it has any.

    Raises
    ------
    GraphError: a number is not finite. The text names row and column.
    """
    # One pass without a temporary array: a sum is finite only if all of its terms are.
    with np.errstate(all="ignore"):
        if not rows.size or np.isfinite(np.sum(rows, dtype=np.float64)):
            return
    bad = ~np.isfinite(rows)
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise GraphError(
            f"{where}: row {first + row}, column {names[column] if names else column}: expected a "
            "finite number, given "
            f"{rows[row, column]} (one of {int(bad.sum()):,}); what is missing has to be filled in "
            "before it can be learned from: --missing mean or zero does it"
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
