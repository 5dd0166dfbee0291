"""Columns that tables of every kind have alike: splits, classes that are texts, and features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import blocks
from hopper.graph.importers.feature_columns import FeatureColumn, one_hot, width_of
from hopper.graph.importers.label_columns import Read
from hopper.graph.importers.spool import Spool
from hopper.graph.importers.table_file import TableFile
from hopper.graph.importers.tables import CHUNK_BYTES
from hopper.graph.schema import Labels

_MOST_CLASSES = 2**31


class Splits:
    """The rows of each split, from a column of their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Spool] = {}

    def read(self, first: int, column: Any) -> None:
        """Take the names of a batch; null or empty = in none."""
        for name, rows in _by_text(column):
            spool = self._found.setdefault(str(name), Spool(self._folder, np.int64))
            spool.append(rows + first)

    def finish(self) -> dict[str, NDArray[np.int64]]:
        """Rows by split, ascending."""
        return {name: spool.finish() for name, spool in self._found.items()}


class TextClasses:
    """Classes from a column of texts, numbered in order of text, or by the texts where all are
    numbers.

    Parameters
    ----------
    refuse: makes the error that a row, whose number this is given, is no class; None = texts that
        are numbers are names like any other.
    """

    def __init__(
        self, column: str, folder: Path, refuse: Callable[[int], GraphError] | None = None
    ) -> None:
        self._column, self._folder, self._refuse = column, folder, refuse
        self._codes: dict[str, int] = {}
        """by text, in the order in which they were found"""
        self._rows = Spool(folder, np.int32)
        self._numbers: list[int | None] = []
        """of the codes"""
        self._outside: int | None = None
        """the first row with a number that no class has"""

    def read(self, first: int, batch: Any) -> None:
        """Take the texts of a batch; null or empty = unlabelled."""
        column = batch.column(self._column)
        codes = np.full(len(column), -1, np.int32)
        for text, rows in _by_text(column):
            if text not in self._codes:
                self._codes[text] = len(self._codes)
                number = None if self._refuse is None else _integer(text)
                self._numbers.append(number)
                if number is not None and not 0 <= number < _MOST_CLASSES:
                    row = first + int(rows[0])
                    self._outside = row if self._outside is None else min(self._outside, row)
            codes[rows] = self._codes[text]
        self._rows.append(codes)

    def finish(self) -> Read:
        """All labels, and the names of the classes where they are not numbers.

        Raises
        ------
        GraphError: see ``refuse``.
        """
        names: list[str] = []
        if None in self._numbers or self._refuse is None:
            names = sorted(self._codes)
            places = {name: place for place, name in enumerate(names)}
            classes = [places[text] for text in self._codes]
            count = len(names)
        else:
            if self._outside is not None:
                raise self._refuse(self._outside)
            classes = [number for number in self._numbers if number is not None]
            count = max(classes, default=-1) + 1
        by_code, found = np.array([*classes, -1], np.int64), Spool(self._folder, np.int64)
        for _, codes in blocks(self._rows.finish()):
            found.append(by_code[codes])
        return (Labels("class", max(1, count)), found.finish()), names


@dataclass(frozen=True)
class ColumnFeatures:
    """The feature columns of a table, read again, in chunks, when they are asked for."""

    source: TableFile
    columns: list[FeatureColumn]
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, width_of(self.columns)

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [name for column in self.columns for name in column.names]

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32"""
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Chunks of at most 64 MiB; NaN where nothing stands."""
        step = max(1, CHUNK_BYTES // (4 * self.shape[1]))
        for first, batch in self.source.batches([column.name for column in self.columns], step):
            part, place = np.empty((batch.num_rows, self.shape[1]), np.float32), 0
            for column in self.columns:
                own = slice(place, place + column.width)
                if column.categories:
                    part[:, own] = one_hot(batch.column(column.name), column)
                else:
                    part[:, own] = self.source.features(batch, column, first)
                place += column.width
            yield first, part


def _by_text(column: Any) -> list[tuple[Any, NDArray[np.int64]]]:
    """What stands in a column and in which rows, in order of the first of them."""
    import pyarrow

    if not pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    numbers = np.asarray(column.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(-1, len(column.dictionary)), side="right")
    texts = column.dictionary.to_pylist()
    found = [
        (text, order[start:end])
        for text, start, end in zip(texts, ends, ends[1:], strict=False)
        if text not in (None, "") and end > start
    ]
    return sorted(found, key=lambda each: int(each[1][0]))


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
