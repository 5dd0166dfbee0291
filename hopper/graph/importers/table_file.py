"""The interface of table files, CSV or Parquet, which are read in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.columns import FeatureColumn
from hopper.graph.importers.label_columns import Read
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.tables import FeatureTable

BATCH_ROWS: Final = 1 << 18


class NamedFeatures(FeatureTable, Protocol):
    """Features whose columns have names."""

    @property
    def columns(self) -> Sequence[FeatureColumn]:
        """The columns of the table."""


class LabelReader(Protocol):
    """Collects the labels of one task, a batch at a time."""

    def read(self, first: int, batch: Any) -> None:
        """Read the labels of a batch whose first row is ``first``.

        Raises
        ------
        GraphError: a value is not a label. The text names file, column, and line or row.
        """

    def finish(self) -> Read:
        """Return all labels, and the names of classes that the table does not number."""


class FeatureReader(Protocol):
    """Finds out what the columns of features hold, a batch at a time."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that :meth:`read` needs."""

    def read(self, first: int, batch: Any) -> None:
        """Read a batch whose first row is ``first``; raise errors as :meth:`LabelReader.read`."""

    def finish(self, rows: int) -> NamedFeatures | None:
        """Return the features, which are read later; None if there are no columns."""


class TableFile(Protocol):
    """A table that is read in batches of columns, which are pyarrow arrays."""

    file: Path
    problems: Problems
    """collects what is wrong with the table's columns"""
    names: Sequence[str]
    """the names of the columns"""
    where: str
    """the file, and the line of the header if there is one, for errors"""
    texts_count: bool
    """whether texts 0, 1, 2, ... are numbers of rows, as in CSV"""

    def estimate_rows(self) -> int:
        """Estimate the number of rows."""

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[tuple[int, Any]]:
        """Iterate over the table in pairs of a first row and a batch from there on.

        Parameters
        ----------
        rows: largest number of rows of a batch.

        Raises
        ------
        GraphError: the file is damaged. The text names it.
        """

    def ids(self, batch: Any, column: str, first: int) -> Any:
        """Read a column of ids, without nulls.

        Raises
        ------
        GraphError: a row has no id.
        """

    def match_type(self, column: Any, arrow_type: Any, name: str, first: int) -> Any:
        """Convert ids of edges to the type of the node table's ids.

        Raises
        ------
        GraphError: they cannot be converted.
        """

    def weights(self, batch: Any, first: int) -> NDArray[np.float32]:
        """Read the column ``weight``: [n] float32."""

    def times(self, batch: Any, first: int) -> NDArray[np.int64]:
        """Read the column ``time``: [n] int64."""

    def label_reader(self, columns: list[str], folder: Path) -> LabelReader:
        """Make a reader of one task's labels, which may keep them in files in ``folder``."""

    def feature_reader(self, columns: list[str]) -> FeatureReader:
        """Make a reader that finds out what columns of features hold."""

    def features(self, batch: Any, column: FeatureColumn, first: int) -> NDArray[Any]:
        """Read a column of numbers or of lists of numbers: [n, width]; missing ones are NaN."""

    def refuse_repeated(self, row: int) -> GraphError:
        """Make the error that a row's id occurs before it."""

    def refuse_unknown(self, row: int, column: str) -> GraphError:
        """Make the error that a row names a node that its table does not have."""


def is_text(arrow_type: Any) -> bool:
    """Return whether a pyarrow type is of texts, dictionary-encoded or not."""
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    return bool(
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_string_view(arrow_type)
    )


def is_list(arrow_type: Any) -> bool:
    """Return whether a pyarrow type is of lists."""
    from pyarrow import types

    return bool(
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )


def is_number(arrow_type: Any) -> bool:
    """Return whether a pyarrow type is of numbers, decimal ones too, or booleans."""
    from pyarrow import types

    return bool(
        types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_decimal(arrow_type)
        or types.is_boolean(arrow_type)
    )
