"""Read node and edge tables in Parquet, in batches; errors name file, row and column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.columns import FeatureColumn
from hopper.graph.importers.feature_columns import MOST_CATEGORIES
from hopper.graph.importers.label_columns import Read, kind_of
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.source_files import first_line, require_file
from hopper.graph.importers.spool import Spool
from hopper.graph.importers.table_columns import ColumnFeatures, TextClasses
from hopper.graph.importers.table_file import (
    BATCH_ROWS,
    LabelReader,
    is_list,
    is_number,
    is_text,
)
from hopper.graph.importers.tables import read_times
from hopper.graph.schema import Labels

_BUFFER: Final = 1 << 20
"""Bytes of a column that are read at once."""


class ParquetFile:
    """A :class:`TableFile` in Parquet, whose columns have types.

    Raises
    ------
    GraphError: it is not a Parquet file.
    """

    texts_count = False

    def __init__(self, file: Path, problems: Problems) -> None:
        self.file, self.problems, self.where = file, problems, str(file)
        self._source = _open(file)
        self.schema = self._source.schema_arrow
        self.names: Sequence[str] = self.schema.names
        self.rows = int(self._source.metadata.num_rows)

    def estimate_rows(self) -> int:
        """Return the exact number of rows, which the file has."""
        return self.rows

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[tuple[int, Any]]:
        """Iterate over batches of columns, as pairs of a first row and a batch."""
        first = 0
        # The file is opened each time, so that its buffers are freed afterwards.
        batches = _open(self.file).iter_batches(rows, columns=list(columns))
        while True:
            try:
                batch = next(batches, None)
            # The library raises many kinds of errors for damaged files.
            except Exception as error:
                raise GraphError(
                    f"{self.file}: columns {', '.join(columns)}: not readable: {first_line(error)}"
                ) from error
            if batch is None:
                return
            if batch.num_rows:
                yield first, batch
            first += batch.num_rows

    def ids(self, batch: Any, column: str, first: int) -> Any:
        """Return a column of ids without nulls; texts of any type become strings."""
        import pyarrow

        ids = batch.column(column)
        _refuse_nulls(ids, self.file, column, first)
        return ids.cast(pyarrow.string()) if is_text(ids.type) else ids

    def match_type(self, column: Any, arrow_type: Any, name: str, first: int) -> Any:
        """Convert ids to the node table's type; integers of any type stay as they are."""
        from pyarrow import types

        try:
            if is_text(column.type) != is_text(arrow_type):
                raise TypeError("texts are no numbers")
            if types.is_integer(arrow_type) and types.is_integer(column.type):
                return column
            return column.cast(arrow_type)
        except Exception as error:
            raise GraphError(
                f"{self.file}: column {name}: expected ids of type {arrow_type}, as in the node "
                f"table, given {column.type}: {first_line(error)}"
            ) from error

    def weights(self, batch: Any, first: int) -> NDArray[np.float32]:
        """Return [n] float32: the weights; :func:`check_tables` checks that they are positive."""
        column = batch.column("weight")
        if not is_number(column.type):
            raise GraphError(f"{self.file}: column weight: expected numbers, given {column.type}")
        _refuse_nulls(column, self.file, "weight", first)
        return np.asarray(_as_numbers(column).to_numpy(zero_copy_only=False), np.float32)

    def times(self, batch: Any, first: int) -> NDArray[np.int64]:
        """Return [n] int64: the times, from integers or dates."""
        column = batch.column("time")
        _refuse_nulls(column, self.file, "time", first)
        return read_times(column.to_numpy(zero_copy_only=False), f"{self.file}: column time")

    def label_reader(self, columns: list[str], folder: Path) -> LabelReader:
        """Make a reader of the columns of one task's labels."""
        name, arrow_type = columns[0], self.schema.field(columns[0]).type
        if kind_of(name) == "several":
            return _Several(self.file, columns, folder)
        if kind_of(name) == "value":
            if not is_number(arrow_type):
                raise GraphError(
                    f"{self.file}: column {name}: expected numbers, given {arrow_type}"
                )
            return _Values(name, folder)
        if is_text(arrow_type):
            return TextClasses(name, folder)
        from pyarrow import types

        if not types.is_integer(arrow_type):
            raise GraphError(
                f"{self.file}: column {name}: expected integers or texts, the numbers or names of "
                f"classes, given {arrow_type}"
            )
        return _Classes(name, folder)

    def feature_reader(self, columns: list[str]) -> _Features:
        """Make a reader that finds out what columns of features hold."""
        return _Features(self, columns)

    def features(self, batch: Any, column: FeatureColumn, first: int) -> NDArray[Any]:
        """Return [n, width]: the numbers of a column, or of its lists of numbers."""
        rows, name = batch.column(column.name), column.name
        if not is_list(rows.type):
            return np.asarray(_as_numbers(rows).to_numpy(zero_copy_only=False)).reshape(-1, 1)
        from pyarrow import compute

        _refuse_nulls(rows, self.file, name, first)
        values, width = rows.flatten(), column.width
        lengths = np.asarray(compute.list_value_length(rows).to_numpy(zero_copy_only=False))
        uneven = np.flatnonzero(lengths != width)
        if uneven.size:
            raise GraphError(
                f"{self.file}: row {first + int(uneven[0])}: column {name}: expected {width} "
                f"numbers, as in the first row, given {int(lengths[uneven[0]])}"
            )
        _refuse_nulls(values, self.file, name, first)
        return np.asarray(_as_numbers(values).to_numpy(zero_copy_only=False)).reshape(-1, width)

    def refuse_repeated(self, row: int) -> GraphError:
        """Make the error that a row's id occurs before it."""
        return GraphError(
            f"{self.file}: row {row}: column id: expected distinct ids; some occur twice"
        )

    def refuse_unknown(self, row: int, column: str) -> GraphError:
        """Make the error that a row names a node that its table does not have."""
        unknown_id = None
        for first, batch in self.batches([column]):
            if row < first + batch.num_rows:
                unknown_id = batch.column(column)[row - first].as_py()
                break
        return GraphError(
            f"{self.file}: row {row}: column {column}: expected an id of the node table, given "
            f"{unknown_id!r}"
        )


class _Values:
    """Reads labels that are numbers."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._found = name, Spool(folder, np.float32)

    def read(self, first: int, batch: Any) -> None:
        """Read the labels of a batch; null = unlabelled."""
        import pyarrow

        column = batch.column(self._name).cast(pyarrow.float32())
        self._found.append(column.to_numpy(zero_copy_only=False))

    def finish(self) -> Read:
        """Return all labels."""
        return (Labels("float", 1), self._found.finish()), []


class _Classes:
    """Reads labels that are numbers of classes."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._found, self._largest = name, Spool(folder, np.int64), -1

    def read(self, first: int, batch: Any) -> None:
        """Read the classes of a batch; null or negative = unlabelled."""
        import pyarrow

        column = batch.column(self._name).cast(pyarrow.int64()).fill_null(-1)
        classes = np.maximum(column.to_numpy(zero_copy_only=False), -1)
        self._largest = max(self._largest, int(classes.max(initial=-1)))
        self._found.append(classes)

    def finish(self) -> Read:
        """Return all labels."""
        return (Labels("class", max(1, self._largest + 1)), self._found.finish()), []


class _Several:
    """Reads multi-hot labels, a column of 0 and 1 for each class."""

    def __init__(self, file: Path, names: list[str], folder: Path) -> None:
        self._file, self._names = file, names
        self._found = Spool(folder, np.uint8, len(names))

    def read(self, first: int, batch: Any) -> None:
        """Read the labels of a batch."""
        columns = [batch.column(name) for name in self._names]
        for name, column in zip(self._names, columns, strict=True):
            _refuse_nulls(column, self._file, name, first)
        arrays = [np.asarray(column.to_numpy(zero_copy_only=False)) for column in columns]
        table = np.stack(arrays, 1)
        wrong = np.argwhere(~np.isin(table, (0, 1)))
        if wrong.size:
            row, number = wrong[0].tolist()
            raise GraphError(
                f"{self._file}: row {first + row}: column {self._names[number]}: expected 0 or 1, "
                f"given {table[row, number]}"
            )
        self._found.append(table)

    def finish(self) -> Read:
        """Return all labels."""
        return (Labels("multi_hot", len(self._names)), self._found.finish()), []


class _Features:
    """Finds out how wide columns of features are; this takes reading those that hold texts."""

    def __init__(self, source: ParquetFile, names: list[str]) -> None:
        self._source, self._names = source, names
        self._texts: dict[str, set[str]] = {}
        for name in names:
            source.problems.attempt(source.file, name, self._check_type, name)

    def _check_type(self, name: str) -> None:
        """Refuse a column of another type than numbers, lists of them, and texts."""
        arrow_type = self._source.schema.field(name).type
        if is_text(arrow_type):
            self._texts[name] = set()
        elif not is_number(arrow_type.value_type if is_list(arrow_type) else arrow_type):
            raise GraphError(
                f"{self._source.file}: column {name}: expected numbers, lists of them, or texts, "
                f"given {arrow_type}: turn it into numbers first"
            )

    @property
    def columns(self) -> Sequence[str]:
        """The columns to read: those that hold texts."""
        return list(self._texts)

    def read(self, first: int, batch: Any) -> None:
        """Read the features of a batch."""
        source = self._source
        for name in self._texts:
            source.problems.attempt(source.file, name, self._add_texts, name, batch, first)

    def _add_texts(self, name: str, batch: Any, first: int) -> None:
        """Add the different texts of a column."""
        categories = self._texts[name]
        categories |= {text for text in batch.column(name).unique().to_pylist() if text}
        if len(categories) > MOST_CATEGORIES:
            raise GraphError(
                f"{self._source.file}: column {name}: expected at most {MOST_CATEGORIES:,} "
                f"different texts, given more in its first {first + batch.num_rows:,} rows: "
                "turn them into numbers first"
            )

    def finish(self, rows: int) -> ColumnFeatures | None:
        """Return the features of all columns; None if there are no columns."""
        columns, source = [], self._source
        for name in self._names:
            if name in self._texts:
                columns.append(FeatureColumn(name, tuple(sorted(self._texts[name]))))
            else:
                width = source.problems.attempt(source.file, name, self._width, name, rows)
                columns.append(FeatureColumn(name, numbers=width or 1))
        return ColumnFeatures(source, columns, rows) if columns else None

    def _width(self, name: str, rows: int) -> int:
        if not is_list(self._source.schema.field(name).type) or not rows:
            return 1
        _, batch = next(self._source.batches([name], 1))
        _refuse_nulls(batch.column(0), self._source.file, name, 0)
        width = len(batch.column(0)[0])
        if not width:
            raise GraphError(
                f"{self._source.file}: row 0: column {name}: expected numbers, given none"
            )
        return width


def _open(file: Path) -> Any:
    """Open a file as a ``pyarrow.parquet.ParquetFile``."""
    from pyarrow import parquet

    require_file(file, "table")
    try:
        # By default, whole row groups are read, and stay in memory until the last is read.
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)
    except Exception as error:
        raise GraphError(f"{file}: not readable as Parquet: {first_line(error)}") from error


def _as_numbers(column: Any) -> Any:
    """Convert decimals and booleans, of which NumPy would make objects, to float64."""
    import pyarrow
    from pyarrow import types

    is_odd = types.is_decimal(column.type) or types.is_boolean(column.type)
    return column.cast(pyarrow.float64()) if is_odd else column


def _refuse_nulls(column: Any, file: Path, name: str, start: int) -> None:
    if column.null_count:
        row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise GraphError(
            f"{file}: row {row}: column {name}: nothing stands there (one of {column.null_count}); "
            "what is missing has to be filled in first"
        )
