"""Encode new tables with the categories, scales and classes of a graph that was imported before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.columns import FeatureColumn
from hopper.graph.names import Names
from hopper.graph.schema import GraphSchema, Labelled, Labels
from hopper.graph.schema_json import read_schema

Unknown = Literal["refuse", "zeros"]
"""What becomes of categories and classes that the earlier graph does not have."""


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
