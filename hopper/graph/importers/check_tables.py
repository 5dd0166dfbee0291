"""Check a graph that an importer has read, whatever its format, before and while it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.array_file import iter_pieces, release_pages
from hopper.graph.check_values import find_outside, is_labelled
from hopper.graph.columns import FeatureColumn
from hopper.graph.importers.tables import Features, GraphTables, Problems
from hopper.graph.schema import Labelled, Relation

_MOST_NODES: Final = 2**48
"""Limit above any graph, at which ids times widths still fit in 64 bits."""
_EXACT_IN_FLOAT32: Final = 2**24
_IDS: Final = 1 << 18
"""Number of ids whose labels are looked up at once."""


def check_tables(tables: GraphTables) -> None:
    """Check counts, ends of edges, lengths of columns, and dtypes of features; note new dtypes."""
    add, counts = tables.problems.add, {name: table.count for name, table in tables.nodes.items()}
    for name, count in counts.items():
        if not 0 <= count <= _MOST_NODES:
            add(name, "count", f"nodes of {name}: expected a count in [0, 2**48], given {count}")
            # All else is compared with it.
            return
    for relation, table in tables.edges.items():
        for end, kind, ids in (("src", relation.src, table.src), ("dst", relation.dst, table.dst)):
            if kind not in counts:
                wrong = f"expected node types of {sorted(counts)}, given {kind!r}"
            elif (edge := find_outside(ids, 0, counts[kind])) >= 0:
                expected = f"expected an id of {kind} in [0, {counts[kind]})"
                wrong = f"{end} of edge {edge}: {expected}, given {ids[edge]}"
            else:
                continue
            add(relation, "edges", f"edges of {relation}: {wrong}")
    for owner, table in tables.all.items():
        what = "edge" if isinstance(owner, Relation) else "node"
        labels, times = table.labels and table.labels[1], table.times
        columns = {"labels": labels, "weights": table.weights, "times": times}
        for column, values in columns.items():
            if values is not None and len(values) != table.count:
                expected = f"expected {table.count}, one for each {what}, given {len(values)}"
                add(owner, column, f"{column} of {owner}: {expected}")
    for owner, where, features in iter_features(tables):
        dtype, count = features.dtype, tables.all[owner].count
        if dtype.kind not in "fiub":
            add(owner, where, f"{where}: expected numbers, given {dtype}: turn them into numbers")
        elif features.shape[0] != count:
            add(owner, where, f"{where}: expected {count} rows, given {features.shape[0]}")
        elif dtype.kind in "iu" and np.iinfo(dtype).max > _EXACT_IN_FLOAT32:
            exact = "float32, which is exact up to 16,777,216"
            tables.notes.append(f"{where}: {dtype} becomes {exact}")
        elif dtype.kind == "b":
            tables.notes.append(f"{where}: true and false become 1 and 0")


def iter_features(tables: GraphTables) -> Iterator[tuple[Labelled, str, Features]]:
    """Iterate over features of nodes and edges: of what they are, in words too, and themselves."""
    for owner, table in tables.all.items():
        if table.features is not None:
            edge = "edge " if isinstance(owner, Relation) else ""
            yield owner, f"{edge}features of {owner}", table.features


def check_labels_of_training(tables: GraphTables, *, leave_out: bool) -> None:
    """Check that all nodes or edges of the split ``train`` have labels, if any has.

    Those without labels in other splits are predicted, and not counted in scores.
    """
    targets = tables.target_tables
    is_checked = targets and not tables.problems.has_failed("train", "split")
    if not is_checked or any(table.labels is None for table in targets):
        return
    missing, total, count, first = list[int](), 0, 0, 0
    for table in targets:
        if table.labels is not None and table.splits is not None and "train" in table.splits:
            (labels, values), ids = table.labels, table.splits["train"]
            has_label = np.empty(ids.size, np.bool_)
            for at, piece in iter_pieces(ids, _IDS):
                has_label[at : at + piece.size] = is_labelled(labels, values[piece])
                release_pages(values)
            total, count = total + ids.size, count + int((~has_label).sum())
            missing += (ids[~has_label][:6] + first).tolist()
            if leave_out:
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
    tables.problems.add(where, "labels", (
        f"{where}: expected one for all that is trained on, but {told} have none ({examples}"
        f"{', ...' if count > 5 else ''}): leave them out of the split, or let "
        "--unlabelled-as-missing do it"
    ))  # fmt: skip


def check_chunks(
    table: Features, where: str, columns: Sequence[FeatureColumn], problems: Problems
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Iterate over chunks as they will be stored.

    The first number that is not finite, of each column where columns have names, is a problem.
    """
    dtype = np.float16 if table.dtype == np.float16 else np.float32
    names = [name for column in columns if column.name for name in column.names]
    for start, chunk in table.chunks():
        with np.errstate(all="ignore"):
            rows = chunk.astype(dtype, copy=False)
            # One pass without a temporary array: a sum is finite only if all of its terms are.
            is_finite = not rows.size or np.isfinite(np.sum(rows, dtype=np.float64))
        bad = np.empty((0, 0), np.bool_) if is_finite else ~np.isfinite(rows)
        places = np.flatnonzero(bad.any(0)).tolist()
        for place in places if names else places[:1]:
            found = np.argwhere(bad[:, place : place + 1] if names else bad)
            row, column = int(found[0, 0]), int(found[0, 1]) + (place if names else 0)
            name = names[column] if names else str(column)
            problems.add(where, name if names else "all columns", (
                f"{where}: row {start + row}, column {name}: expected a finite number, given "
                f"{rows[row, column]} (one of {len(found):,}); what is missing has to be filled in "
                "before it can be learned from: --missing mean or zero does it"
            ))  # fmt: skip
        yield start, rows
