"""A file with a table of nodes or edges, CSV or Parquet, that is read in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.feature_columns import FeatureColumn
from hopper.graph.importers.label_columns import Read
from hopper.graph.importers.tables import FeatureTable

BATCH_ROWS: Final = 1 << 18


class NamedFeatures(FeatureTable, Protocol):
    """Features whose columns have names."""

    @property
    def names(self) -> list[str]:
        """Of the columns."""


class LabelReader(Protocol):
    """Collects the labels of one task, a batch at a time."""

    def read(self, first: int, batch: Any) -> None:
        """Take the labels of a batch whose first row is ``first``.

        Raises
        ------
        GraphError: one is none; names file, column, and line or row.
        """

    def finish(self) -> Read:
        """All labels, and what classes are called that the table does not number."""


class FeatureReader(Protocol):
    """Finds out what the columns of features hold, a batch at a time."""

    @property
    def columns(self) -> Sequence[str]:
        """Those that it has to see for that."""

    def read(self, first: int, batch: Any) -> None:
        """Look at a batch; raises as :meth:`LabelReader.read`."""

    def finish(self, rows: int) -> NamedFeatures | None:
        """The features, read when they are asked for; None where there are no columns."""


class TableFile(Protocol):
    """A table whose columns are pyarrow's arrays."""

    file: Path
    names: Sequence[str]
    """of its columns"""
    where: str
    """where these stand, for errors"""
    texts_count: bool
    """whether texts that are 0, 1, 2, ... are numbers of rows, as in CSV"""

    def estimate_rows(self) -> int:
        """How many rows it has, about."""

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[tuple[int, Any]]:
        """Pairs of a first row and a batch from there on.

        Parameters
        ----------
        rows: of a batch at most.

        Raises
        ------
        GraphError: the file is damaged; names it.
        """

    def ids(self, batch: Any, column: str, first: int) -> Any:
        """A column of ids, without nulls.

        Raises
        ------
        GraphError: nothing stands in a row.
        """

    def match_type(self, column: Any, kind: Any, name: str, first: int) -> Any:
        """Ids of edges as those of the node table are.

        Raises
        ------
        GraphError: they are of another kind.
        """

    def weights(self, batch: Any, first: int) -> NDArray[np.float32]:
        """The column ``weight``; raises GraphError as all do."""

    def times(self, batch: Any, first: int) -> NDArray[np.int64]:
        """The column ``time``."""

    def label_reader(self, columns: list[str], folder: Path) -> LabelReader:
        """For the labels of one task; ``folder`` takes what is long."""

    def feature_reader(self, columns: list[str]) -> FeatureReader:
        """For columns of features."""

    def features(self, batch: Any, column: FeatureColumn, first: int) -> NDArray[Any]:
        """[n, width] of a column of numbers, or of lists of them; NaN where nothing stands."""

    def refuse_repeated(self, row: int) -> GraphError:
        """The error that an earlier row has the id of this one."""

    def refuse_unknown(self, row: int, column: str) -> GraphError:
        """The error that an end of an edge is no id of the node table."""


def is_text(kind: Any) -> bool:
    """Whether a type of pyarrow's is of texts, dictionary-encoded or not."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_list(kind: Any) -> bool:
    """Whether a type of pyarrow's is of lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    """Whether a type of pyarrow's is of numbers."""
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
