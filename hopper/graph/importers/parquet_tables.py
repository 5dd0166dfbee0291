"""Node and edge tables in Parquet, read in batches by pyarrow; errors name file, row and column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.importers.feature_columns import MOST_CATEGORIES, FeatureColumn
from hopper.graph.importers.label_columns import Read, kind_of
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
"""bytes of a column that are read at once"""


class ParquetFile:
    """A :class:`TableFile`: its columns have types.

    Raises
    ------
    GraphError: it is no Parquet file.
    RequestError: pyarrow is missing.
    """

    texts_count = False

    def __init__(self, file: Path) -> None:
        self.file, self.where = file, str(file)
        self._source = _open(file)
        self.schema = self._source.schema_arrow
        self.names: Sequence[str] = self.schema.names
        self.rows = int(self._source.metadata.num_rows)

    def estimate_rows(self) -> int:
        """As the file says."""
        return self.rows

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[tuple[int, Any]]:
        """See :class:`TableFile`."""
        first = 0
        # A file of its own each time, whose buffers go with it.
        batches = _open(self.file).iter_batches(rows, columns=list(columns))
        while True:
            try:
                batch = next(batches, None)
            # Damaged files are told of in many ways.
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
        """Without nulls; texts of one kind."""
        import pyarrow

        found = batch.column(column)
        _refuse_nulls(found, self.file, column, first)
        return found.cast(pyarrow.string()) if is_text(found.type) else found

    def match_type(self, column: Any, kind: Any, name: str, first: int) -> Any:
        """Integers as they are; what else there is becomes of the node table's type."""
        from pyarrow import types

        try:
            if is_text(column.type) != is_text(kind):
                raise TypeError("texts are no numbers")
            if types.is_integer(kind) and types.is_integer(column.type):
                return column
            return column.cast(kind)
        except Exception as error:
            raise GraphError(
                f"{self.file}: column {name}: expected ids of type {kind}, as in the node table, "
                f"given {column.type}: {first_line(error)}"
            ) from error

    def weights(self, batch: Any, first: int) -> NDArray[np.float32]:
        """Whether they are positive is checked with those of other sources."""
        column = batch.column("weight")
        if not is_number(column.type):
            raise GraphError(f"{self.file}: column weight: expected numbers, given {column.type}")
        _refuse_nulls(column, self.file, "weight", first)
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float32)

    def times(self, batch: Any, first: int) -> NDArray[np.int64]:
        """Integers or dates."""
        column = batch.column("time")
        _refuse_nulls(column, self.file, "time", first)
        return read_times(column.to_numpy(zero_copy_only=False), f"{self.file}: column time")

    def label_reader(self, columns: list[str], folder: Path) -> LabelReader:
        """See :class:`TableFile`."""
        name, kind = columns[0], self.schema.field(columns[0]).type
        if kind_of(name) == "several":
            return _Several(self.file, columns, folder)
        if kind_of(name) == "value":
            if not is_number(kind):
                raise GraphError(f"{self.file}: column {name}: expected numbers, given {kind}")
            return _Values(name, folder)
        if is_text(kind):
            return TextClasses(name, folder)
        from pyarrow import types

        if not types.is_integer(kind):
            raise GraphError(
                f"{self.file}: column {name}: expected integers or texts, the numbers or names of "
                f"classes, given {kind}"
            )
        return _Classes(name, folder)

    def feature_reader(self, columns: list[str]) -> _Features:
        """See :class:`TableFile`."""
        return _Features(self, columns)

    def features(self, batch: Any, column: FeatureColumn, first: int) -> NDArray[Any]:
        """See :class:`TableFile`."""
        found, name = batch.column(column.name), column.name
        if not is_list(found.type):
            return np.asarray(found.to_numpy(zero_copy_only=False)).reshape(-1, 1)
        from pyarrow import compute

        _refuse_nulls(found, self.file, name, first)
        values, width = found.flatten(), column.width
        lengths = np.asarray(compute.list_value_length(found).to_numpy(zero_copy_only=False))
        uneven = np.flatnonzero(lengths != width)
        if uneven.size:
            raise GraphError(
                f"{self.file}: row {first + int(uneven[0])}: column {name}: expected {width} "
                f"numbers, as in the first row, given {int(lengths[uneven[0]])}"
            )
        _refuse_nulls(values, self.file, name, first)
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, width)

    def refuse_repeated(self, row: int) -> GraphError:
        """See :class:`TableFile`."""
        return GraphError(
            f"{self.file}: row {row}: column id: expected distinct ids; some occur twice"
        )

    def refuse_unknown(self, row: int, column: str) -> GraphError:
        """See :class:`TableFile`; looks for the id."""
        given = None
        for first, batch in self.batches([column]):
            if row < first + batch.num_rows:
                given = batch.column(column)[row - first].as_py()
                break
        return GraphError(
            f"{self.file}: row {row}: column {column}: expected an id of the node table, given "
            f"{given!r}"
        )


class _Values:
    """Labels that are numbers."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._found = name, Spool(folder, np.float32)

    def read(self, first: int, batch: Any) -> None:
        """See :class:`LabelReader`."""
        import pyarrow

        column = batch.column(self._name).cast(pyarrow.float32())
        self._found.append(column.to_numpy(zero_copy_only=False))

    def finish(self) -> Read:
        """See :class:`LabelReader`."""
        return (Labels("float", 1), self._found.finish()), []


class _Classes:
    """Labels that are numbers of classes."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._found, self._largest = name, Spool(folder, np.int64), -1

    def read(self, first: int, batch: Any) -> None:
        """See :class:`LabelReader`."""
        import pyarrow

        column = batch.column(self._name).cast(pyarrow.int64()).fill_null(-1)
        classes = np.maximum(column.to_numpy(zero_copy_only=False), -1)
        self._largest = max(self._largest, int(classes.max(initial=-1)))
        self._found.append(classes)

    def finish(self) -> Read:
        """See :class:`LabelReader`."""
        return (Labels("class", max(1, self._largest + 1)), self._found.finish()), []


class _Several:
    """Labels of which each is 0 or 1."""

    def __init__(self, file: Path, names: list[str], folder: Path) -> None:
        self._file, self._names = file, names
        self._found = Spool(folder, np.uint8, len(names))

    def read(self, first: int, batch: Any) -> None:
        """See :class:`LabelReader`."""
        columns = [batch.column(name) for name in self._names]
        for name, column in zip(self._names, columns, strict=True):
            _refuse_nulls(column, self._file, name, first)
        table = np.stack([np.asarray(each.to_numpy(zero_copy_only=False)) for each in columns], 1)
        wrong = np.argwhere(~np.isin(table, (0, 1)))
        if wrong.size:
            row, place = wrong[0].tolist()
            raise GraphError(
                f"{self._file}: row {first + row}: column {self._names[place]}: expected 0 or 1, "
                f"given {table[row, place]}"
            )
        self._found.append(table)

    def finish(self) -> Read:
        """See :class:`LabelReader`."""
        return (Labels("multi_hot", len(self._names)), self._found.finish()), []


class _Features:
    """Finds out how wide columns of features are: of texts by reading them."""

    def __init__(self, source: ParquetFile, names: list[str]) -> None:
        self._source, self._names = source, names
        self._texts: dict[str, set[str]] = {}
        for name in names:
            kind = source.schema.field(name).type
            if is_text(kind):
                self._texts[name] = set()
            elif not is_number(kind.value_type if is_list(kind) else kind):
                raise GraphError(
                    f"{source.file}: column {name}: expected numbers, lists of them, or texts, "
                    f"given {kind}: turn it into numbers first"
                )

    @property
    def columns(self) -> Sequence[str]:
        """Those of texts."""
        return list(self._texts)

    def read(self, first: int, batch: Any) -> None:
        """See :class:`FeatureReader`."""
        for name, found in self._texts.items():
            found |= {text for text in batch.column(name).unique().to_pylist() if text}
            if len(found) > MOST_CATEGORIES:
                raise GraphError(
                    f"{self._source.file}: column {name}: expected at most {MOST_CATEGORIES:,} "
                    f"different texts, given more in its first {first + batch.num_rows:,} rows: "
                    "turn them into numbers first"
                )

    def finish(self, rows: int) -> ColumnFeatures | None:
        """The columns' features."""
        columns = [
            FeatureColumn(name, tuple(sorted(self._texts[name])))
            if name in self._texts
            else FeatureColumn(name, numbers=self._width(name, rows))
            for name in self._names
        ]
        return ColumnFeatures(self._source, columns, rows) if columns else None

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
    """A ``pyarrow.parquet.ParquetFile``."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RequestError(
            f"import parquet: pyarrow cannot be imported ({error}); install it with: pip install "
            "'hopper-gnn[tables]'"
        ) from error
    require_file(file, "table")
    try:
        # Otherwise row groups are read whole, and stay in memory until the last is read.
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)
    except Exception as error:
        raise GraphError(f"{file}: not readable as Parquet: {first_line(error)}") from error


def _refuse_nulls(column: Any, file: Path, name: str, start: int) -> None:
    if column.null_count:
        row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise GraphError(
            f"{file}: row {row}: column {name}: nothing stands there (one of {column.null_count}); "
            "what is missing has to be filled in first"
        )
