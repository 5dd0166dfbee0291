"""Read new tables with the categories, scales and classes of a graph that was imported earlier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import iter_pieces
from hopper.graph.columns import FeatureColumn
from hopper.graph.importers.label_columns import Read, kind_of
from hopper.graph.importers.spool import Spool
from hopper.graph.importers.table_columns import ColumnFeatures, TextClasses
from hopper.graph.importers.table_file import FeatureReader, LabelReader, TableFile
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

    def columns(self, owner: Labelled, width: int | None = None) -> tuple[FeatureColumn, ...]:
        """Return the columns of a node type or a relation.

        Parameters
        ----------
        width: the number of columns of features that they must become; None = any.

        Raises
        ------
        GraphError: it has none, or of another width.
        """
        kind = self._kind(owner)
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
        """Return what readers of a table need to know."""
        labels, names = self.schema.labels.get(owner), dict[str, list[str]]()
        by_task = dict(labels.tasks) if labels and labels.tasks else {"": labels} if labels else {}
        for task, of_task in by_task.items():
            file = layout.label_names_file(self.path, owner, task)
            found = Names.open(file, of_task.classes) if of_task.kind == "class" else None
            if found is not None:
                names[task] = found.of(np.arange(len(found)))
        return LikeTable(self, owner, by_task, names)

    def _kind(self, owner: Labelled) -> Any:
        tables: Mapping[Any, Any] = {**self.schema.node_types, **self.schema.relations}
        return tables.get(owner)


@dataclass(frozen=True)
class LikeTable:
    """Makes the readers of one table's features and labels.

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

    def feature_reader(self, source: TableFile, names: Sequence[str]) -> FeatureReader:
        """Make a reader of features that must have the graph's columns, in any order."""
        columns = self.graph.columns(self.owner) if names or self._has_features() else ()
        expected = [column.name for column in columns]
        if sorted(names) != sorted(expected):
            raise GraphError(
                f"{source.where}: expected the columns of features {', '.join(expected)}, as in "
                f"{self.graph.path}, given {', '.join(names) or 'none'}"
            )
        return _LikeFeatures(source, self, columns)

    def label_reader(
        self, source: TableFile, task: str, columns: list[str], folder: Path
    ) -> LabelReader:
        """Make a reader of a task's labels, which numbers classes as the graph does."""
        if task in self.names and kind_of(columns[0]) == "label":
            return _LikeClasses(TextClasses(columns[0], folder), self, task, folder)
        reader = source.label_reader(columns, folder)
        return _LikeLabels(reader, self, task) if task in self.labels else reader

    def tell(self, what: str, unknown: Mapping[str, int], expected: Sequence[str]) -> None:
        """Refuse unknown texts or note them, as asked, with the number of their rows.

        Raises
        ------
        GraphError: they are refused.
        """
        if not unknown:
            return
        texts, known = (f"{', '.join(t[:10])}{', ...' * (len(t) > 10)}" for t in (
            sorted(unknown), list(expected)
        ))  # fmt: skip
        rows = sum(unknown.values())
        if self.graph.unknown == "refuse":
            raise GraphError(
                f"{self.owner}: {what}: expected one of {known}, as in {self.graph.path}, given "
                f"{texts} in {rows:,} rows; --unknown-category zeros takes them as none of these"
            )
        self.notes.append(f"{self.owner}: {what}: {rows:,} rows of unknown {texts}: taken as none")

    def _has_features(self) -> bool:
        return str(self.owner) in self.graph.schema.feature_tables


class _LikeFeatures:
    """Counts texts that are no categories; numbers are read as by the table's own reader."""

    def __init__(
        self, source: TableFile, like: LikeTable, columns: Sequence[FeatureColumn]
    ) -> None:
        self._source, self._like, self._all = source, like, columns
        self._texts = {
            column.name: set(column.categories) for column in columns if column.categories
        }
        self._unknown = {name: Counter[str]() for name in self._texts}
        numbers = [column.name for column in columns if not column.categories]
        self._numbers = source.feature_reader(numbers)

    @property
    def columns(self) -> Sequence[str]:
        """The columns that :meth:`read` needs."""
        return [*self._texts, *self._numbers.columns]

    def read(self, first: int, batch: Any) -> None:
        """Count the texts of a batch."""
        import pyarrow

        self._numbers.read(first, batch)
        for name, known in self._texts.items():
            counts = batch.column(name).cast(pyarrow.string()).value_counts()
            for entry in counts.to_pylist():
                if entry["values"] and entry["values"] not in known:
                    self._unknown[name][entry["values"]] += entry["counts"]

    def finish(self, rows: int) -> ColumnFeatures | None:
        """Return the features in the graph's order of columns."""
        for column in self._all:
            if column.name in self._unknown:
                unknown = self._unknown[column.name]
                self._like.tell(f"column {column.name!r}", unknown, column.categories)
        found = self._numbers.finish(rows)
        given = {column.name: column for column in (found.columns if found else ())}
        for column in self._all:
            number = given.get(column.name, column)
            if (number.categories, number.numbers) != (column.categories, column.numbers):
                raise GraphError(
                    f"{self._source.file}: column {column.name}: expected {column.numbers} numbers "
                    f"a row, as in {self._like.graph.path}, given "
                    f"{'texts' if number.categories else number.numbers}"
                )
        rule: Literal["", "zeros"] = "zeros" if self._like.graph.unknown == "zeros" else ""
        columns = [replace(one, unknown=rule) if one.categories else one for one in self._all]
        return ColumnFeatures(self._source, columns, rows) if columns else None


class _LikeLabels:
    """Reads labels that the source numbers, of the graph's kind and number of classes."""

    def __init__(self, reader: LabelReader, like: LikeTable, task: str) -> None:
        self._reader, self._like, self._expected = reader, like, like.labels[task]

    def read(self, first: int, batch: Any) -> None:
        """Read the labels of a batch."""
        self._reader.read(first, batch)

    def finish(self) -> Read:
        """Return all labels."""
        found, names = self._reader.finish()
        expected = self._expected
        labels, values = found if found is not None else (expected, None)
        is_class = labels.kind == "class"
        fits = labels.classes <= expected.classes if is_class else labels == expected
        if labels.kind != expected.kind or names or not fits:
            given = "names of classes" if names else f"{labels.kind} of width {labels.classes}"
            raise GraphError(
                f"labels of {self._like.owner}: expected {expected.kind} of width "
                f"{expected.classes}, as in {self._like.graph.path}, given {given}"
            )
        return (None if values is None else (expected, values)), []


class _LikeClasses:
    """Reads classes by their names, and numbers them as the graph does."""

    def __init__(self, reader: TextClasses, like: LikeTable, task: str, folder: Path) -> None:
        self._reader, self._like, self._task, self._folder = reader, like, task, folder

    def read(self, first: int, batch: Any) -> None:
        """Read the labels of a batch."""
        self._reader.read(first, batch)

    def finish(self) -> Read:
        """Return all labels; those of unknown classes are -1, as if there were none."""
        found, given = self._reader.finish()
        names = self._like.names[self._task]
        known = {name: number for number, name in enumerate(names)}
        number_of = np.array([*(known.get(str(name), -1) for name in given), -1], np.int64)
        renumbered, counts = Spool(self._folder, np.int64), np.zeros(len(given) + 1, np.int64)
        assert found is not None
        values: NDArray[np.int64] = found[1]
        for _, piece in iter_pieces(values):
            renumbered.append(number_of[piece])
            counts += np.bincount(piece % counts.size, minlength=counts.size)
        unknown = {
            str(name): int(counts[number])
            for number, name in enumerate(given)
            if str(name) not in known
        }
        self._like.tell(f"labels{f' of task {self._task}' if self._task else ''}", unknown, names)
        return (self._like.labels[self._task], renumbered.finish()), names
