"""Encode new tables with the categories, scales and classes of a graph that was imported before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.columns import FeatureColumn
from hopper.graph.names import Names
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, Labels, NodeType, Relation
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

    def columns(self, owner: Labelled, width: int | None = None) -> tuple[FeatureColumn, ...]:
        """Return the columns of a node type or a relation."""
        kind: NodeType | EdgeType | None = (
            self.schema.relations.get(owner)
            if isinstance(owner, Relation)
            else self.schema.node_types.get(owner)
        )
        if kind is None or kind.feature_dim is None:
            raise GraphError(
                f"{self.path}: features of {owner}: expected some, to encode new ones like them"
            )
        if width is None and not kind.columns:
            raise GraphError(
                f"{self.path}: features of {owner}: expected the encodings of columns, which older "
                "versions did not keep; import its source again"
            )
        if width not in (None, kind.feature_dim):
            raise GraphError(
                f"features of {owner}: expected {kind.feature_dim} columns, as in {self.path}, "
                f"given {width}"
            )
        matrix = (FeatureColumn("", numbers=kind.feature_dim),)
        return tuple(replace(column, ranges=()) for column in kind.columns or matrix)

    def table(self, owner: Labelled) -> LikeTable:
        """Return what the reader of a table needs to know."""
        labels, names = self.schema.labels.get(owner), dict[str, list[str]]()
        by_task = dict(labels.tasks) if labels and labels.tasks else {"": labels} if labels else {}
        for task, of_task in by_task.items():
            file = layout.label_names_file(self.path, owner, task)
            found = Names.open(file, of_task.classes) if of_task.kind == "class" else None
            if found is not None:
                names[task] = found.of(np.arange(len(found)))
        return LikeTable(self, owner, by_task, names)


@dataclass(frozen=True)
class LikeTable:
    """How one table's features and labels are encoded.

    Attributes
    ----------
    labels, names: the labels, and the names of classes that have some, by task.
    notes: what was unknown, a line each, once the table is read.
    """

    graph: LikeGraph
    owner: Labelled
    labels: Mapping[str, Labels]
    names: Mapping[str, list[str]]
    notes: list[str] = field(default_factory=list)

    def columns(self, names: Sequence[str], where: str) -> list[FeatureColumn]:
        """Return the graph's columns, which the table must have, in any order."""
        has_features = str(self.owner) in self.graph.schema.feature_tables
        columns = self.graph.columns(self.owner) if names or has_features else ()
        expected = [column.name for column in columns]
        if sorted(names) != sorted(expected):
            raise GraphError(
                f"{where}: expected the columns of features {', '.join(expected)}, as in "
                f"{self.graph.path}, given {', '.join(names) or 'none'}"
            )
        rule: Literal["", "zeros"] = "zeros" if self.graph.unknown == "zeros" else ""
        return [replace(one, unknown=rule) if one.categories else one for one in columns]

    def check_labels(self, labels: Labels, names: Sequence[str], task: str) -> Labels:
        """Return the graph's labels of a task; those given must be of their kind and width."""
        expected = self.labels[task]
        fits = labels.classes <= expected.classes if labels.kind == "class" else labels == expected
        if labels.kind != expected.kind or names or not fits:
            given = "names of classes" if names else f"{labels.kind} of width {labels.classes}"
            raise GraphError(
                f"labels of {self.owner}: expected {expected.kind} of width {expected.classes}, as "
                f"in {self.graph.path}, given {given}"
            )
        return expected

    def tell(self, what: str, unknown: Mapping[str, int], expected: Sequence[str]) -> None:
        """Refuse unknown texts or note them, as asked, with the number of their rows."""
        if not unknown:
            return
        given, known = (
            ", ".join(texts[:10]) + ", ..." * (len(texts) > 10)
            for texts in (sorted(unknown), expected)
        )
        rows = sum(unknown.values())
        if self.graph.unknown == "refuse":
            raise GraphError(
                f"{self.owner}: {what}: expected one of {known}, as in {self.graph.path}, given "
                f"{given} in {rows:,} rows; --unknown-category zeros takes them as none of these"
            )
        self.notes.append(f"{self.owner}: {what}: {rows:,} rows of unknown {given}: taken as none")
