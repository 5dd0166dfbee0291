"""Read the columns that CSV and Parquet share: splits, classes that are texts, and features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces
from hopper.graph.columns import FeatureColumn, width_of
from hopper.graph.importers.feature_columns import one_hot
from hopper.graph.importers.label_columns import Read
from hopper.graph.importers.spool import Spool
from hopper.graph.importers.table_file import TableFile
from hopper.graph.importers.tables import CHUNK_BYTES
from hopper.graph.schema import Labels

_MOST_CLASSES = 2**31


class Splits:
    """Collects the rows of each split from a column of splits' names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Spool] = {}

    def read(self, first: int, column: Any) -> None:
        """Read the names of a batch; null or empty = in no split."""
        for name, rows in _group_by_text(column):
            spool = self._found.setdefault(str(name), Spool(self._folder, np.int64))
            spool.append(rows + first)

    def finish(self) -> dict[str, NDArray[np.int64]]:
        """Return the rows of each split, ascending."""
        return {name: spool.finish() for name, spool in self._found.items()}


class TextClasses:
    """Reads classes from a column of texts, and numbers them in sorted order.

    Parameters
    ----------
    refuse: read texts as classes' numbers if all are integers; called with the number of a row, it
        makes the error that the row has no class. None = integers are names like other texts.
    """

    def __init__(
        self, column: str, folder: Path, refuse: Callable[[int], GraphError] | None = None
    ) -> None:
        self._column, self._folder, self._refuse = column, folder, refuse
        self._codes: dict[str, int] = {}
        """the code of each text, in order of first occurrence"""
        self._rows = Spool(folder, np.int32)
        self._numbers: list[int | None] = []
        """the integer that each code's text is, if it is one"""
        self._outside: int | None = None
        """the first row with an integer that is not a class"""

    def read(self, first: int, batch: Any) -> None:
        """Read the texts of a batch; null or empty = unlabelled."""
        column = batch.column(self._column)
        codes = np.full(len(column), -1, np.int32)
        for text, rows in _group_by_text(column):
            if text not in self._codes:
                self._codes[text] = len(self._codes)
                number = None if self._refuse is None else _parse_integer(text)
                self._numbers.append(number)
                if number is not None and not 0 <= number < _MOST_CLASSES:
                    row = first + int(rows[0])
                    self._outside = row if self._outside is None else min(self._outside, row)
            codes[rows] = self._codes[text]
        self._rows.append(codes)

    def finish(self) -> Read:
        """Return all labels, and the names of the classes unless the texts number them.

        Raises
        ------
        GraphError: an integer is not a class.
        """
        names: list[str] = []
        if None in self._numbers or self._refuse is None:
            names = sorted(self._codes)
            numbers = {name: number for number, name in enumerate(names)}
            classes = [numbers[text] for text in self._codes]
            count = len(names)
        else:
            if self._outside is not None:
                raise self._refuse(self._outside)
            classes = [number for number in self._numbers if number is not None]
            count = max(classes, default=-1) + 1
        class_of, labels = np.array([*classes, -1], np.int64), Spool(self._folder, np.int64)
        for _, codes in iter_pieces(self._rows.finish()):
            labels.append(class_of[codes])
        return (Labels("class", max(1, count)), labels.finish()), names


@dataclass(frozen=True)
class ColumnFeatures:
    """The feature columns of a table, which is read again, in chunks, for them."""

    source: TableFile
    columns: Sequence[FeatureColumn]
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, width_of(self.columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the chunks, float32."""
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Iterate over chunks of at most 64 MiB; missing numbers are NaN.

        Columns that cannot be read are problems of the table, and 0.
        """
        step = max(1, CHUNK_BYTES // (4 * self.shape[1]))
        source = self.source
        for first, batch in source.batches([column.name for column in self.columns], step):
            rows, start = np.empty((batch.num_rows, self.shape[1]), np.float32), 0
            for column in self.columns:
                stop = start + column.width
                if column.categories:
                    rows[:, start:stop] = one_hot(batch.column(column.name), column)
                else:
                    read = source.features
                    numbers = source.problems.attempt(
                        source.file, column.name, read, batch, column, first
                    )
                    rows[:, start:stop] = 0 if numbers is None else numbers
                start = stop
            yield first, rows


def _group_by_text(column: Any) -> list[tuple[Any, NDArray[np.int64]]]:
    """Group the rows of a column by text, in order of first occurrence; leave empty texts out."""
    import pyarrow

    if not pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    numbers = np.asarray(column.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(-1, len(column.dictionary)), side="right")
    texts = column.dictionary.to_pylist()
    groups = [
        (text, order[start:end])
        for text, start, end in zip(texts, ends, ends[1:], strict=False)
        if text not in (None, "") and end > start
    ]
    return sorted(groups, key=lambda group: int(group[1][0]))


def _parse_integer(text: str) -> int | None:
    """Parse an integer; return None for any other text."""
    try:
        return int(text)
    except ValueError:
        return None
