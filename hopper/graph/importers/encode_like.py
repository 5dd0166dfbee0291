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


@dataclass(frozen=True)
class LikeGraph:
    """The graph that new data are encoded like: a graph directory or a partitioned directory.

    Attributes
    ----------
    unknown: what becomes of categories and classes that it does not have.
    """

    path: Path
    schema: GraphSchema
    unknown: Unknown

    @classmethod
    def open(cls, path: str, unknown: Unknown) -> LikeGraph | None:
        """Open the graph; None where no path is given."""
        return cls(Path(path), read_schema(Path(path)), unknown) if path else None

    def matrix(self, owner: Labelled, width: int) -> tuple[FeatureColumn, ...]:
        """Return the columns of features that the source has as a matrix of some width."""
        columns, expected = self._columns(owner)
        if width != expected:
            raise GraphError(
                f"features of {owner}: expected {expected} columns, as in {self.path}, given "
                f"{width}"
            )
        return columns or (FeatureColumn("", numbers=width),)

    def columns(self, owner: Labelled, names: Sequence[str], where: str) -> list[FeatureColumn]:
        """Return the columns of features of a table, which must have the same, in any order."""
        has_features = str(owner) in self.schema.feature_tables
        columns = self._columns(owner)[0] if names or has_features else ()
        if has_features and not columns:
            raise GraphError(
                f"{self.path}: features of {owner}: expected the encodings of columns, which older "
                "versions did not keep; import its source again"
            )
        expected = [column.name for column in columns]
        if sorted(names) != sorted(expected):
            raise GraphError(
                f"{where}: expected the columns of features {', '.join(expected)}, as in "
                f"{self.path}, given {', '.join(names) or 'none'}"
            )
        rule: Literal["", "zeros"] = "zeros" if self.unknown == "zeros" else ""
        return [replace(one, unknown=rule) if one.categories else one for one in columns]

    def _columns(self, owner: Labelled) -> tuple[tuple[FeatureColumn, ...], int]:
        kind = self.schema.kinds.get(owner)
        if kind is None or kind.feature_dim is None:
            raise GraphError(
                f"{self.path}: features of {owner}: expected some, to encode new ones like them"
            )
        return tuple(replace(column, ranges=()) for column in kind.columns), kind.feature_dim

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
