"""Read node and edge tables in CSV, in batches that pyarrow parses; errors name the line."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.errors import GraphError
from hopper.graph.columns import FeatureColumn
from hopper.graph.importers.csv_lines import find_line, read_header, read_lines
from hopper.graph.importers.feature_columns import MOST_CATEGORIES
from hopper.graph.importers.label_columns import Read, kind_of
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.source_files import first_line
from hopper.graph.importers.spool import Spool
from hopper.graph.importers.table_columns import ColumnFeatures, TextClasses
from hopper.graph.importers.table_file import BATCH_ROWS, LabelReader
from hopper.graph.schema import Labels
from hopper.graph.times import parse_time

_BLOCK: Final = 8 << 20
"""Bytes of a file that are parsed at once."""
_SAMPLE: Final = 1 << 20
"""Bytes from which the length of lines is estimated."""
_START, _PLAIN, _QUOTED, _ENDED, _WRONG = range(5)
"""Where a reader of CSV is: before a value, in a plain or a quoted one, after a quote in a quoted
one, or after a quoted one that goes on."""


class CsvFile:
    """A :class:`TableFile` in CSV, whose columns are texts; missing values are empty texts.

    Raises
    ------
    GraphError: the header is missing or repeats a column.
    """

    texts_count = True

    def __init__(self, file: Path, problems: Problems) -> None:
        self.file, self.problems, self.where = file, problems, f"{file}: line 1"
        self.names: Sequence[str] = read_header(file)

    def estimate_rows(self) -> int:
        """Estimate the number of rows from the number of lines in the first MiB."""
        with self.file.open("rb") as stream:
            sample = stream.read(_SAMPLE)
        lines = max(sample.count(b"\n"), sample.count(b"\r"), 1)
        return int(self.file.stat().st_size * lines / max(1, len(sample)))

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[tuple[int, Any]]:
        """Iterate over batches of columns; the error names the first line that cannot be read."""
        import pyarrow
        from pyarrow import csv

        try:
            with self.file.open("rb") as stream:
                quotes = _Quotes(stream)
                reader = csv.open_csv(
                    pyarrow.PythonFile(quotes, mode="r"),
                    csv.ReadOptions(block_size=_BLOCK),
                    csv.ParseOptions(newlines_in_values=True),
                    csv.ConvertOptions(
                        column_types=dict.fromkeys(columns, pyarrow.string()),
                        include_columns=list(columns),
                        strings_can_be_null=False,
                    ),
                )
                first = 0
                for block in reader:
                    for start in range(0, block.num_rows, rows):
                        batch = block.slice(start, rows)
                        yield first, batch
                        first += batch.num_rows
                if quotes.state in (_QUOTED, _WRONG):
                    raise pyarrow.ArrowInvalid("a quoted value that goes on, or does not end")
        except pyarrow.ArrowInvalid as error:
            for _ in read_lines(self.file):
                # If a line is wrong, this raises an error that names it.
                pass
            raise GraphError(f"{self.file}: cannot be read as CSV: {first_line(error)}") from error
        except OSError as error:
            raise GraphError(f"{self.file}: cannot be read as CSV: {error}") from error

    def ids(self, batch: Any, column: str, first: int) -> Any:
        """Return the texts of a column of ids; an empty text is refused in a node table."""
        texts = batch.column(column)
        if column == "id":
            row = _first_true(_is_empty(texts))
            if row is not None:
                raise self.refuse(first + row, column, "a distinct id")
        return texts

    def match_type(self, column: Any, arrow_type: Any, name: str, first: int) -> Any:
        """Return the column, because all columns are texts."""
        return column

    def weights(self, batch: Any, first: int) -> NDArray[np.float32]:
        """Return [n] float32: the weights, checked to be positive."""
        weights = self.numbers(batch, "weight", first, empty_is_missing=False)
        wrong = np.flatnonzero(weights <= 0)
        if wrong.size:
            raise self.refuse(first + int(wrong[0]), "weight", "a positive number")
        with np.errstate(over="ignore"):
            return weights.astype(np.float32)

    def times(self, batch: Any, first: int) -> NDArray[np.int64]:
        """Return [n] int64: the times, as :func:`parse_time` reads them."""
        import pyarrow
        from pyarrow import compute

        texts = batch.column("time")
        # pyarrow would read hexadecimal numbers.
        if not compute.any(compute.match_substring(texts, "x", ignore_case=True)).as_py():
            try:
                return np.asarray(texts.cast(pyarrow.int64()).to_numpy())
            except pyarrow.ArrowInvalid:
                pass
        times = np.empty(len(texts), np.int64)
        for row, text in enumerate(texts.to_pylist()):
            try:
                times[row] = parse_time(text)
            except ValueError as error:
                raise self.refuse(first + row, "time", str(error)) from None
        return times

    def numbers(
        self, batch: Any, column: str, first: int, *, empty_is_missing: bool
    ) -> NDArray[np.float64]:
        """Return [n] float64: a column's numbers, checked to be finite.

        Parameters
        ----------
        empty_is_missing: read an empty text as NaN instead of refusing it.
        """
        import pyarrow
        from pyarrow import compute

        texts = batch.column(column)
        empty = _is_empty(texts)
        try:
            null = pyarrow.scalar(None, pyarrow.string())
            values = compute.if_else(pyarrow.array(empty), null, texts)
            numbers = values.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
        except pyarrow.ArrowInvalid:
            # Python reads numbers that pyarrow refuses, such as those with blanks around them.
            numbers = self._parse_numbers(texts, column, first, empty)
        missing = empty if empty_is_missing else np.zeros_like(empty)
        row = _first_true(empty & ~missing)
        if row is not None:
            raise self.refuse(first + row, column, "a number")
        row = _first_true(~np.isfinite(numbers) & ~empty)
        if row is not None:
            raise self.refuse(first + row, column, "a finite number")
        return np.asarray(numbers, np.float64)

    def _parse_numbers(
        self, texts: Any, column: str, first: int, empty: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        numbers = np.full(len(texts), np.nan)
        for row, text in enumerate(texts.to_pylist()):
            if not empty[row]:
                try:
                    numbers[row] = float(text)
                except ValueError:
                    raise self.refuse(first + row, column, "a number") from None
        return numbers

    def label_reader(self, columns: list[str], folder: Path) -> LabelReader:
        """Make a reader of the columns of one task's labels."""
        if kind_of(columns[0]) == "label":
            expected = "a class (an integer of at least 0) or nothing"
            return TextClasses(
                columns[0], folder, lambda row: self.refuse(row, columns[0], expected)
            )
        return _LabelNumbers(self, columns, folder)

    def feature_reader(self, columns: list[str]) -> _Features:
        """Make a reader that finds out what columns of features hold."""
        return _Features(self, columns)

    def features(self, batch: Any, column: FeatureColumn, first: int) -> NDArray[Any]:
        """Return [n, 1] float32: a column of numbers; NaN where a text is empty."""
        numbers = self.numbers(batch, column.name, first, empty_is_missing=True)
        with np.errstate(over="ignore"):
            return numbers.astype(np.float32)[:, None]

    def refuse(self, row: int, column: str, expected: str) -> GraphError:
        """Make the error that a value is wrong; this looks for its line."""
        return find_line(self.file, row).refuse(column, expected)

    def refuse_repeated(self, row: int) -> GraphError:
        """Make the error that a row's id occurs before it."""
        return self.refuse(row, "id", "a distinct id")

    def refuse_unknown(self, row: int, column: str) -> GraphError:
        """Make the error that a row names a node that its table does not have."""
        return self.refuse(row, column, "an id of the node table")


class _Quotes:
    """A file that follows the quotes read from it, as RFC 4180 has them.

    A quote begins a quoted value only as its first character. pyarrow would read all text after one
    that is not closed as one value.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self.state = stream, _START
        if stream.read(len(BOM_UTF8)) != BOM_UTF8:
            stream.seek(0)

    def read(self, size: int) -> bytes:
        data = bytes(self._stream.read(size))
        if b'"' in data or self.state in (_QUOTED, _ENDED):
            self.state = _follow_quotes(np.frombuffer(data, np.uint8), self.state)
        elif data and self.state != _WRONG:
            self.state = _START if data[-1:] in (b",", b"\n", b"\r") else _PLAIN
        return data

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        self._stream.close()


@kernel
def _follow_quotes(data: NDArray[np.uint8], state: int) -> int:
    """Return the state after some bytes, from the state before them."""
    for byte in data:
        if state == _WRONG:
            break
        if state == _QUOTED:
            state = _ENDED if byte == 34 else _QUOTED
        elif byte in (44, 10, 13):  # a comma, or the end of a line
            state = _START
        elif state == _ENDED:
            state = _QUOTED if byte == 34 else _WRONG  # a doubled quote stands for one
        elif state == _START:
            state = _QUOTED if byte == 34 else _PLAIN
    return state


class _LabelNumbers:
    """Reads labels that are numbers, or multi-hot labels in several columns."""

    def __init__(self, source: CsvFile, columns: list[str], folder: Path) -> None:
        self._source, self._columns = source, columns
        self._is_value = kind_of(columns[0]) == "value"
        self._found = (
            Spool(folder, np.float32) if self._is_value else Spool(folder, np.uint8, len(columns))
        )

    def read(self, first: int, batch: Any) -> None:
        """Read the labels of a batch."""
        if self._is_value:
            name = self._columns[0]
            numbers = self._source.numbers(batch, name, first, empty_is_missing=True)
            with np.errstate(over="ignore"):
                self._found.append(numbers.astype(np.float32))
            return
        columns = [self._zeros_and_ones(batch, name, first) for name in self._columns]
        self._found.append(np.stack(columns, 1))

    def finish(self) -> Read:
        """Return all labels."""
        labels = Labels("float", 1) if self._is_value else Labels("multi_hot", len(self._columns))
        return (labels, self._found.finish()), []

    def _zeros_and_ones(self, batch: Any, name: str, first: int) -> NDArray[np.uint8]:
        texts = batch.column(name).dictionary_encode()
        distinct = [_parse_bit(text) for text in texts.dictionary.to_pylist()]
        bits = np.array(distinct, np.int8)[texts.indices.to_numpy()]
        wrong = np.flatnonzero(bits < 0)
        if wrong.size:
            raise self._source.refuse(first + int(wrong[0]), name, "0 or 1")
        return bits.astype(np.uint8)


class _Features:
    """Finds out whether columns of features hold numbers or texts, and which texts.

    The first value of a column that is not empty decides.
    """

    def __init__(self, source: CsvFile, names: list[str]) -> None:
        self._source, self._names = source, names
        self._undecided, self._texts = list(names), dict[str, set[str]]()

    @property
    def columns(self) -> Sequence[str]:
        """The columns to read: all, because any may hold texts."""
        return self._names

    def read(self, first: int, batch: Any) -> None:
        """Read the features of a batch."""
        for name in list(self._undecided):
            row = _first_true(~_is_empty(batch.column(name)))
            if row is not None:
                self._undecided.remove(name)
                if not _is_float(batch.column(name)[row].as_py()):
                    self._texts[name] = set()
        source = self._source
        for name in self._texts:
            source.problems.attempt(source.file, name, self._add_texts, name, batch, first)

    def _add_texts(self, name: str, batch: Any, first: int) -> None:
        """Add the different texts of a column."""
        texts, categories = batch.column(name), self._texts[name]
        new = set(texts.unique().to_pylist()) - {""} - categories
        if len(categories) + len(new) > MOST_CATEGORIES:
            raise self._refuse(first, texts, name, categories)
        categories |= new

    def finish(self, rows: int) -> ColumnFeatures | None:
        """Return the features of all columns; None if there are no columns."""
        columns = [
            FeatureColumn(name, tuple(sorted(self._texts.get(name, ())))) for name in self._names
        ]
        return ColumnFeatures(self._source, columns, rows) if columns else None

    def _refuse(self, first: int, texts: Any, name: str, choices: set[str]) -> GraphError:
        """Make the error that a column has too many texts, at the first one too many."""
        new = [text for text in texts.unique().to_pylist() if text and text not in choices]
        row = texts.to_pylist().index(new[MOST_CATEGORIES - len(choices)])
        expected = f"a number, or at most {MOST_CATEGORIES:,} different texts"
        return self._source.refuse(first + row, name, expected)


def _is_empty(texts: Any) -> NDArray[np.bool_]:
    from pyarrow import compute

    is_empty = compute.equal(compute.binary_length(texts), 0)
    return np.asarray(is_empty.to_numpy(zero_copy_only=False), np.bool_)


def _first_true(mask: NDArray[np.bool_]) -> int | None:
    """Return the first index where the mask is true, if any."""
    index = int(mask.argmax()) if mask.size else 0
    return index if mask.size and mask[index] else None


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_bit(text: str) -> int:
    """Parse 0 or 1; return -1 for any other text."""
    try:
        number = int(text)
    except ValueError:
        return -1
    return number if number in (0, 1) else -1
