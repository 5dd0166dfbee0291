"""Features that a user's class provides instead of a server's files.

The class is named on the command line or in the configuration, never in a data file. It is asked
for rows by original id, the number that the graph's owner knows a node by.
"""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import SourceError

RowDtype = Literal["float32", "float16"]
_ROWS_CHECKED: Final = 3


class RowSource(Protocol):
    """Feature rows of one node type: the interface of a user's class.

    The class is called with the keywords ``node_type``, ``count`` (nodes of the type in the whole
    graph), ``server`` (index of the server whose nodes will be asked for), and its options. Every
    rank and every feature server makes one. Only a server's own machine asks for its nodes, so each
    machine may have other rows.
    """

    @property
    def dim(self) -> int:
        """The number of elements in a row."""
        ...

    @property
    def dtype(self) -> RowDtype:
        """The dtype of a row."""
        ...

    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of [n] original ids in their order: [n, dim] of :attr:`dtype`.

        Ids may repeat, and n may be 0. An id must always have the same row. The caller may change
        the returned array. Different threads may call this, but never at the same time.
        """
        ...


@dataclass(frozen=True)
class SourceRequest:
    """The class of a source as "package.module:Class", and keywords for its constructor."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, node_type: str, server: int, count: int) -> CheckedSource:
        """Import the class, and make a source for one server."""
        try:
            kind: Any = pkgutil.resolve_name(self.name)
            source = kind(node_type=node_type, count=count, server=server, **self.options)
        # A user's module may raise anything; the error must name the class.
        except Exception as error:
            raise SourceError(
                f"features of {node_type}: {self.name} cannot be made "
                f"({type(error).__name__}: {error})"
            ) from error
        return CheckedSource(self.name, node_type, source)


NO_SOURCES: Final[Mapping[str, SourceRequest]] = {}


class CheckedSource:
    """A source whose rows are checked against the width and dtype that it declares."""

    def __init__(self, name: str, node_type: str, source: RowSource) -> None:
        self._name = f"features of {node_type}: {name}"
        self._source = source
        self._lock = threading.Lock()
        dim, dtype = getattr(source, "dim", None), getattr(source, "dtype", None)
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 1:
            raise SourceError(f"{self._name}: dim: expected an integer >= 1, got {dim!r:.100}")
        dtypes = get_args(RowDtype)
        if dtype not in dtypes:
            raise SourceError(
                f"{self._name}: dtype: expected {' or '.join(dtypes)}, got {dtype!r:.100}"
            )
        self.dim = dim
        self.dtype_name: RowDtype = source.dtype
        self.dtype = np.dtype(dtype)

    def read(self, ids: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the rows of [n] original ids: [n, dim]."""
        try:
            with self._lock:
                rows = self._source.read(np.asarray(ids, np.int64))
        # A user's class may raise anything; the error must name the class.
        except Exception as error:
            raise SourceError(
                f"{self._name}: rows cannot be read ({type(error).__name__}: {error})"
            ) from error
        expected = (ids.size, self.dim), self.dtype
        if not isinstance(rows, np.ndarray) or (rows.shape, rows.dtype) != expected:
            is_array = isinstance(rows, np.ndarray)
            found = f"{list(rows.shape)} of {rows.dtype}" if is_array else rows
            raise SourceError(
                f"{self._name}: expected rows [{ids.size}, {self.dim}] of {self.dtype}; got "
                f"{found!s:.200}"
            )
        # A view is copied, since callers may write to the array.
        return rows if rows.flags.owndata and rows.flags.c_contiguous else rows.copy()

    def check(self, ids: NDArray[np.integer[Any]]) -> None:
        """Read no rows, and then the first of [n] original ids twice, to find errors early."""
        first = ids[:_ROWS_CHECKED]
        self.read(ids[:0])
        rows, reversed_rows = self.read(first), self.read(first[::-1].copy())
        if not np.array_equal(rows, reversed_rows[::-1], equal_nan=True):
            raise SourceError(
                f"{self._name}: expected the same row of an id every time, whatever is read with it"
            )
