"""Node and edge tables in CSV: parsed in batches of texts by pyarrow; errors name file, line and
column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.importers.csv_lines import find_line, read_header, read_lines
from hopper.graph.importers.feature_columns import MOST_CATEGORIES, FeatureColumn
from hopper.graph.importers.label_columns import Read, kind_of
from hopper.graph.importers.source_files import first_line
from hopper.graph.importers.spool import Spool
from hopper.graph.importers.table_columns import ColumnFeatures, TextClasses
from hopper.graph.importers.table_file import BATCH_ROWS, LabelReader
from hopper.graph.schema import Labels
from hopper.graph.times import parse_time

_BLOCK: Final = 8 << 20
"""bytes of a file that are parsed at once"""
_SAMPLE: Final = 1 << 20
"""bytes from which the length of lines is estimated"""


class CsvFile:
    """A :class:`TableFile`: its columns are of texts, empty where nothing stands.

    Raises
    ------
    GraphError: the header is missing or repeats a column.
    RequestError: pyarrow is missing.
    """

    texts_count = True

    def __init__(self, file: Path) -> None:
        self.file, self.where = file, f"{file}: line 1"
        self.names: Sequence[str] = read_header(file)
        try:
            import pyarrow.csv  # noqa: F401
        except ImportError as error:
            raise RequestError(
                f"import csv: pyarrow cannot be imported ({error}); install it with: pip install "
                "'hopper-gnn[tables]'"
            ) from error

    def estimate_rows(self) -> int:
        """From the number of lines in the first MiB."""
        with self.file.open("rb") as stream:
            sample = stream.read(_SAMPLE)
        lines = max(sample.count(b"\n"), sample.count(b"\r"), 1)
        return int(self.file.stat().st_size * lines / max(1, len(sample)))

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[tuple[int, Any]]:
        """See :class:`TableFile`; names the first line that cannot be read."""
        import pyarrow
        from pyarrow import csv

        try:
            with self.file.open("rb") as stream:
                counted = _Quotes(stream)
                reader = csv.open_csv(
                    pyarrow.PythonFile(counted, mode="r"),
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
                if counted.number % 2:
                    raise pyarrow.ArrowInvalid("a quote that is opened and not closed")
        except pyarrow.ArrowInvalid as error:
            for _ in read_lines(self.file):
                # Where a line is at fault, this tells which.
                pass
            raise GraphError(f"{self.file}: cannot be read as CSV: {first_line(error)}") from error
        except OSError as error:
            raise GraphError(f"{self.file}: cannot be read as CSV: {error}") from error

    def ids(self, batch: Any, column: str, first: int) -> Any:
        """The texts; an empty one is refused in a node table, and unknown in a table of edges."""
        texts = batch.column(column)
        if column == "id":
            empty = _first(_is_empty(texts))
            if empty is not None:
                raise self.refuse(first + empty, column, "a distinct id")
        return texts

    def match_type(self, column: Any, kind: Any, name: str, first: int) -> Any:
        """All are texts."""
        return column

    def weights(self, batch: Any, first: int) -> NDArray[np.float32]:
        """Positive numbers."""
        found = self.numbers(batch, "weight", first, empty_is_missing=False)
        wrong = np.flatnonzero(found <= 0)
        if wrong.size:
            raise self.refuse(first + int(wrong[0]), "weight", "a positive number")
        with np.errstate(over="ignore"):
            return found.astype(np.float32)

    def times(self, batch: Any, first: int) -> NDArray[np.int64]:
        """See :func:`parse_time`."""
        import pyarrow
        from pyarrow import compute

        texts = batch.column("time")
        # pyarrow reads hexadecimal numbers as well.
        if not compute.any(compute.match_substring(texts, "x", ignore_case=True)).as_py():
            try:
                return np.asarray(texts.cast(pyarrow.int64()).to_numpy())
            except pyarrow.ArrowInvalid:
                pass
        found = np.empty(len(texts), np.int64)
        for place, text in enumerate(texts.to_pylist()):
            try:
                found[place] = parse_time(text)
            except ValueError as error:
                raise self.refuse(first + place, "time", str(error)) from None
        return found

    def numbers(
        self, batch: Any, column: str, first: int, *, empty_is_missing: bool
    ) -> NDArray[np.float64]:
        """[n] finite numbers of a column; NaN where nothing stands, if that may be."""
        import pyarrow
        from pyarrow import compute

        texts = batch.column(column)
        empty = _is_empty(texts)
        try:
            nothing = pyarrow.scalar(None, pyarrow.string())
            values = compute.if_else(pyarrow.array(empty), nothing, texts)
            found = values.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
        except pyarrow.ArrowInvalid:
            # Python reads what pyarrow does not, such as blanks around a number.
            found = self._converted(texts, column, first, empty)
        missing = empty if empty_is_missing else np.zeros_like(empty)
        place = _first(empty & ~missing)
        if place is not None:
            raise self.refuse(first + place, column, "a number")
        place = _first(~np.isfinite(found) & ~empty)
        if place is not None:
            raise self.refuse(first + place, column, "a finite number")
        return np.asarray(found, np.float64)

    def _converted(
        self, texts: Any, column: str, first: int, empty: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        found = np.full(len(texts), np.nan)
        for place, text in enumerate(texts.to_pylist()):
            if not empty[place]:
                try:
                    found[place] = float(text)
                except ValueError:
                    raise self.refuse(first + place, column, "a number") from None
        return found

    def label_reader(self, columns: list[str], folder: Path) -> LabelReader:
        """See :class:`TableFile`."""
        if kind_of(columns[0]) == "label":
            expected = "a class (an integer of at least 0) or nothing"
            return TextClasses(
                columns[0], folder, lambda row: self.refuse(row, columns[0], expected)
            )
        return _LabelNumbers(self, columns, folder)

    def feature_reader(self, columns: list[str]) -> _Features:
        """See :class:`TableFile`."""
        return _Features(self, columns)

    def features(self, batch: Any, column: FeatureColumn, first: int) -> NDArray[Any]:
        """See :class:`TableFile`."""
        found = self.numbers(batch, column.name, first, empty_is_missing=True)
        with np.errstate(over="ignore"):
            return found.astype(np.float32)[:, None]

    def refuse(self, row: int, column: str, expected: str) -> GraphError:
        """The error that a value is not what was expected; looks for its line."""
        return find_line(self.file, row).refuse(column, expected)

    def refuse_repeated(self, row: int) -> GraphError:
        """See :class:`TableFile`."""
        return self.refuse(row, "id", "a distinct id")

    def refuse_unknown(self, row: int, column: str) -> GraphError:
        """See :class:`TableFile`."""
        return self.refuse(row, column, "an id of the node table")


class _Quotes:
    """A file that counts the quotes that are read from it: pyarrow takes a quote that is not closed
    for one around all the rest."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.number = stream, 0

    def read(self, size: int) -> bytes:
        data = bytes(self._stream.read(size))
        self.number += data.count(b'"')
        return data

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        self._stream.close()


class _LabelNumbers:
    """Labels that are numbers, or several of 0 and 1."""

    def __init__(self, source: CsvFile, columns: list[str], folder: Path) -> None:
        self._source, self._columns = source, columns
        self._is_value = kind_of(columns[0]) == "value"
        self._found = (
            Spool(folder, np.float32) if self._is_value else Spool(folder, np.uint8, len(columns))
        )

    def read(self, first: int, batch: Any) -> None:
        """See :class:`LabelReader`."""
        if self._is_value:
            name = self._columns[0]
            found = self._source.numbers(batch, name, first, empty_is_missing=True)
            with np.errstate(over="ignore"):
                self._found.append(found.astype(np.float32))
            return
        parts = [self._zeros_and_ones(batch, name, first) for name in self._columns]
        self._found.append(np.stack(parts, 1))

    def finish(self) -> Read:
        """See :class:`LabelReader`."""
        labels = Labels("float", 1) if self._is_value else Labels("multi_hot", len(self._columns))
        return (labels, self._found.finish()), []

    def _zeros_and_ones(self, batch: Any, name: str, first: int) -> NDArray[np.uint8]:
        texts = batch.column(name).dictionary_encode()
        known = [_zero_or_one(text) for text in texts.dictionary.to_pylist()]
        found = np.array(known, np.int8)[texts.indices.to_numpy()]
        wrong = np.flatnonzero(found < 0)
        if wrong.size:
            raise self._source.refuse(first + int(wrong[0]), name, "0 or 1")
        return found.astype(np.uint8)


class _Features:
    """Finds out what columns of features hold: what stands in one first says whether numbers or
    texts do."""

    def __init__(self, source: CsvFile, names: list[str]) -> None:
        self._source, self._names = source, names
        self._undecided, self._texts = list(names), dict[str, set[str]]()

    @property
    def columns(self) -> Sequence[str]:
        """All: in any of them texts may stand."""
        return self._names

    def read(self, first: int, batch: Any) -> None:
        """See :class:`FeatureReader`."""
        for name in list(self._undecided):
            place = _first(~_is_empty(batch.column(name)))
            if place is not None:
                self._undecided.remove(name)
                if not _is_float(batch.column(name)[place].as_py()):
                    self._texts[name] = set()
        for name, found in self._texts.items():
            texts = batch.column(name)
            new = set(texts.unique().to_pylist()) - {""} - found
            if len(found) + len(new) > MOST_CATEGORIES:
                raise self._refuse(first, texts, name, found)
            found |= new

    def finish(self, rows: int) -> ColumnFeatures | None:
        """The columns' features."""
        columns = [
            FeatureColumn(name, tuple(sorted(self._texts.get(name, ())))) for name in self._names
        ]
        return ColumnFeatures(self._source, columns, rows) if columns else None

    def _refuse(self, first: int, texts: Any, name: str, known: set[str]) -> GraphError:
        """That there are too many texts, at the line of the first one too many."""
        new = [text for text in texts.unique().to_pylist() if text and text not in known]
        place = texts.to_pylist().index(new[MOST_CATEGORIES - len(known)])
        expected = f"a number, or at most {MOST_CATEGORIES:,} different texts"
        return self._source.refuse(first + place, name, expected)


def _is_empty(texts: Any) -> NDArray[np.bool_]:
    from pyarrow import compute

    found = compute.equal(compute.binary_length(texts), 0)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _first(mask: NDArray[np.bool_]) -> int | None:
    """The first place where it is true."""
    place = int(mask.argmax()) if mask.size else 0
    return place if mask.size and mask[place] else None


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _zero_or_one(text: str) -> int:
    """0 or 1; -1 of another text."""
    try:
        number = int(text)
    except ValueError:
        return -1
    return number if number in (0, 1) else -1
