"""Fill, scale and measure the columns of features while a graph is imported; encode new tables with
the categories, scales and classes of a graph that was imported before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.columns import ColumnRange, FeatureColumn, ScaleName
from hopper.graph.importers.tables import Features
from hopper.graph.names import Names
from hopper.graph.schema import GraphSchema, Labelled, Labels
from hopper.graph.schema_json import read_schema

_PIECE: Final = 1 << 17
"""Numbers that are computed with at once."""
_SAMPLE: Final = 1 << 14
"""Rows of a matrix that are measured."""
Unknown = Literal["refuse", "zeros"]
"""What becomes of categories and classes that the earlier graph does not have."""


class Moments:
    """The numbers of some columns so far, without those that are missing: [numbers] each.

    Of a matrix, a sample of its rows is measured where they are written.
    """

    def __init__(self, columns: Sequence[FeatureColumn], rows: int = 0) -> None:
        self._columns = columns
        is_number = [not column.categories for column in columns for _ in range(column.width)]
        self._places = np.flatnonzero(is_number)
        self._step = max(1, rows // _SAMPLE) if any(not column.name for column in columns) else 1
        numbers = self._places.size
        self.count = np.zeros(numbers, np.int64)
        self.mean, self._squares = np.zeros(numbers), np.zeros(numbers)
        self.min, self.max = np.full(numbers, np.inf), np.full(numbers, -np.inf)

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviations."""
        return np.sqrt(self._squares / np.maximum(self.count, 1))

    def add(self, rows: NDArray[Any]) -> None:
        """Count rows, [n, features], or of a matrix some of them, by the update of Chan, Golub and
        LeVeque (1979)."""
        for _, all_columns in _pieces(rows[:: self._step]):
            piece = all_columns[:, self._places]
            known = np.isfinite(piece)
            count = known.sum(0)
            mean = np.where(known, piece, 0).sum(0) / np.maximum(count, 1)
            squares = np.square(np.where(known, piece - mean, 0)).sum(0)
            total, shift = np.maximum(self.count + count, 1), mean - self.mean
            self._squares += squares + shift**2 * self.count * count / total
            self.mean += shift * count / total
            self.count += count
            self.min = np.minimum(self.min, np.where(known, piece, np.inf).min(0, initial=np.inf))
            self.max = np.maximum(self.max, np.where(known, piece, -np.inf).max(0, initial=-np.inf))

    def describe(self) -> list[FeatureColumn]:
        """Return the columns with their ranges; none where nothing is to be said of a matrix."""

        def add_ranges(column: FeatureColumn, fitted: list[tuple[float, ...]]) -> FeatureColumn:
            ranges = [
                ColumnRange(at, *(float(f"{value:.6g}") for value in values))
                for at, (count, *values) in enumerate(zip(*fitted, strict=True))
                if count
            ]
            if column.numbers > 1 or not column.name:
                ranges = [one for one in ranges if one.is_wide]
            return replace(column, ranges=tuple(ranges))

        statistics = [self.count, self.min, self.max, self.mean, self.std]
        described = _fit(self._columns, statistics, add_ranges)
        trivial = [FeatureColumn("", numbers=column.numbers) for column in described]
        return [] if described == trivial else described


def encode(
    table: Features,
    columns: Sequence[FeatureColumn],
    scale: ScaleName | str,
    missing: str,
    rows: NDArray[np.int64] | None,
) -> tuple[Features, list[FeatureColumn], int]:
    """Fill and scale the numbers of a table's columns; columns that have a rule keep it.

    Scales are fitted on some ascending rows, or on all. Returns the table, its columns with what
    was fitted, and how many missing numbers were filled.
    """
    encoded, filled = list(columns), 0
    if table.dtype.kind == "f" and (missing or any(column.missing for column in columns)):
        found = _measure(table, encoded, None)
        filled = table.shape[0] * found.count.size - int(found.count.sum())
        means = found.mean if missing == "mean" else np.zeros(found.count.size)
        encoded = _fit(encoded, [means], lambda column, fitted: replace(
            column, missing=column.missing or missing, fill=column.fill or fitted[0] * bool(missing)
        ))  # fmt: skip
    if scale in ("standard", "minmax"):
        found = _measure(_apply(table, encoded), encoded, rows)
        known = found.count > 0
        low = np.where(known, found.min, 0)
        offset = found.mean if scale == "standard" else low
        span = found.std if scale == "standard" else np.where(known, found.max, 0) - low
        divisor = np.where(span > 0, span, 1)
        encoded = _fit(encoded, [offset, divisor], lambda column, fitted: replace(
            column, scale=scale, offset=fitted[0], divisor=fitted[1]
        ))  # fmt: skip
    elif scale:
        encoded = _fit(encoded, [], lambda column, _: replace(column, scale=scale))
    is_changed = filled or any(column.scale not in ("", "row") for column in encoded)
    return _apply(table, encoded) if is_changed else table, encoded, filled


def _apply(features: Features, columns: Sequence[FeatureColumn]) -> Features:
    """Return features whose numbers are filled and scaled as their columns say."""
    fill, offset = _vector(columns, "fill", np.nan), _vector(columns, "offset", 0.0)
    divisor = _vector(columns, "divisor", 1.0)
    log = np.array([column.scale == "log" for column in columns for _ in range(column.width)])
    dtype = features.dtype if features.dtype.kind == "f" else np.dtype(np.float32)

    def chunks() -> Iterator[tuple[int, NDArray[Any]]]:
        for start, rows in features.chunks():
            encoded = np.empty(rows.shape, dtype)
            for first, piece in _pieces(rows):
                values = np.where(np.isnan(piece), fill, piece)
                values[:, log] = np.copysign(np.log1p(np.abs(values[:, log])), values[:, log])
                encoded[first : first + len(piece)] = (values - offset) / divisor
            yield start, encoded

    return Features(features.shape, dtype, chunks)


def _fit(
    columns: Sequence[FeatureColumn], fitted: Sequence[NDArray[Any]], change: Any
) -> list[FeatureColumn]:
    """Change each column of numbers with its part of what was fitted, [numbers] each."""
    ends = np.cumsum([0 if column.categories else column.numbers for column in columns])
    return [
        column
        if column.categories
        else change(column, [tuple(v[end - column.numbers : end].tolist()) for v in fitted])
        for column, end in zip(columns, ends.tolist(), strict=True)
    ]


def _measure(
    table: Features, columns: Sequence[FeatureColumn], rows: NDArray[np.int64] | None
) -> Moments:
    """Read a table once, and measure the numbers of some rows."""
    found = Moments(columns)
    for start, chunk in table.chunks():
        part: slice | NDArray[np.int64] = slice(None)
        if rows is not None:
            first, stop = np.searchsorted(rows, (start, start + len(chunk)))
            part = rows[first:stop] - start
        found.add(chunk[part])
    return found


def _vector(columns: Sequence[FeatureColumn], field: str, default: float) -> NDArray[np.float64]:
    """Join what columns say of their numbers; [width] float64, a default where they say nothing."""
    parts = [getattr(column, field) or [default] * column.width for column in columns]
    return np.array([value for part in parts for value in part], np.float64)


def _pieces(rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Iterate over rows in pieces of float64."""
    step = max(1, _PIECE // max(1, rows.shape[1]))
    for first in range(0, len(rows), step):
        yield first, rows[first : first + step].astype(np.float64)


@dataclass(frozen=True)
class LikeGraph:
    """The graph that new data are encoded like: a graph directory or a partitioned directory."""

    path: Path
    schema: GraphSchema
    unknown: Unknown

    @classmethod
    def open(cls, path: str, unknown: Unknown) -> LikeGraph | None:
        """Open the graph; None where no path is given."""
        return cls(Path(path), read_schema(Path(path)), unknown) if path else None

    def matrix(self, owner: Labelled, width: int) -> tuple[FeatureColumn, ...]:
        """Return the columns of features that the source has as a matrix of some width."""
        kind = self.schema.kinds.get(owner)
        if kind is None or kind.feature_dim != width:
            expected = kind and kind.feature_dim
            raise GraphError(
                f"features of {owner}: expected {expected or 'no'} columns, as in {self.path}, "
                f"given {width}"
            )
        return _forget_ranges(kind.columns) or (FeatureColumn("", numbers=width),)

    def columns(self, owner: Labelled, names: Sequence[str], where: str) -> list[FeatureColumn]:
        """Return the columns of features of a table, which must have the same, in any order."""
        kind = self.schema.feature_tables.get(str(owner))
        if kind is not None and not kind.columns:
            raise GraphError(
                f"{self.path}: features of {owner}: expected the encodings of columns, which older "
                "versions did not keep; import its source again"
            )
        columns = _forget_ranges(() if kind is None else kind.columns)
        expected = [column.name for column in columns]
        if sorted(names) != sorted(expected):
            raise GraphError(
                f"{where}: expected the columns of features {', '.join(expected) or 'none'}, as in "
                f"{self.path}, given {', '.join(names) or 'none'}"
            )
        rule: Literal["", "zeros"] = "zeros" if self.unknown == "zeros" else ""
        return [replace(one, unknown=rule) if one.categories else one for one in columns]

    def labels(self, owner: Labelled) -> dict[str, tuple[Labels, list[str]]]:
        """Return the labels of each task, and the names of its classes if they have some."""
        labels, found = self.schema.labels.get(owner), dict[str, tuple[Labels, list[str]]]()
        by_task = dict(labels.tasks) if labels and labels.tasks else {"": labels} if labels else {}
        for task, of_task in by_task.items():
            file = layout.label_names_file(self.path, owner, task)
            names = Names.open(file, of_task.classes) if of_task.kind == "class" else None
            found[task] = of_task, names.of(np.arange(len(names))) if names is not None else []
        return found

    def check_labels(
        self, owner: Labelled, expected: Labels, labels: Labels, names: Sequence[str]
    ) -> None:
        """Check that labels of a task have the kind and the width that are expected."""
        fits = labels.classes <= expected.classes if labels.kind == "class" else labels == expected
        if labels.kind != expected.kind or names or not fits:
            given = "names of classes" if names else f"{labels.kind} of width {labels.classes}"
            raise GraphError(
                f"labels of {owner}: expected {expected.kind} of width {expected.classes}, as in "
                f"{self.path}, given {given}"
            )

    def tell_unknown(
        self, owner: Labelled, what: str, unknown: Mapping[str, int], expected: Sequence[str]
    ) -> list[str]:
        """Refuse unknown texts, or return a note on them and the number of their rows."""
        if not unknown:
            return []
        given, known = (
            ", ".join(texts[:10]) + ", ..." * (len(texts) > 10)
            for texts in (sorted(unknown), expected)
        )
        rows = sum(unknown.values())
        if self.unknown == "refuse":
            raise GraphError(
                f"{owner}: {what}: expected one of {known}, as in {self.path}, given {given} in "
                f"{rows:,} rows; --unknown-category zeros takes them as none of these"
            )
        return [f"{owner}: {what}: {rows:,} rows of unknown {given}: taken as none"]


def _forget_ranges(columns: Sequence[FeatureColumn]) -> tuple[FeatureColumn, ...]:
    return tuple(replace(column, ranges=()) for column in columns)
