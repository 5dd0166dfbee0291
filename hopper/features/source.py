"""The one interface through which rows are read."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.ops import StoredRows
from hopper.traffic import Traffic

RowKind = Literal["features", "labels"]


class RowFiller(Protocol):
    """Writes rows to given places of a table."""

    def fill(
        self,
        kind: RowKind,
        node_type: str,
        ids: NDArray[np.int64],
        out: NDArray[Any],
        places: NDArray[np.int64],
    ) -> None:
        """Read rows straight into a table.

        Parameters
        ----------
        ids: [n] int64 global ids, repeats allowed, n may be 0.
        out: [rows, dim], C-contiguous, of the dtype that is stored. After an error its content is
            undefined.
        places: [n] int64, distinct rows of ``out``.

        Raises
        ------
        As :meth:`FeatureSource.gather`.
        """
        ...


class FeatureSource(Protocol):
    """Reads rows by global id. One conformance suite tests every implementation."""

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Read rows in the order asked for.

        Parameters
        ----------
        ids: [n] int64 global ids, repeats allowed, n may be 0.

        Returns
        -------
        [n, dim] in the dtype that is stored (one-dimensional labels have dim 1).

        Raises
        ------
        GraphError: an id or a node type that does not exist, or a type without such rows.
        ServerLost, DeadlineExceeded: a remote row could not be had.
        """
        ...


class InputRows(FeatureSource, Protocol):
    """Rows of the whole graph, as models read them."""

    def stored(self, node_type: str, ids: NDArray[np.int64]) -> StoredRows:
        """[n, dim]: features of distinct nodes, in the order asked for. Those of other servers are
        fetched now, others read when they are multiplied.

        Raises
        ------
        As :meth:`FeatureSource.gather`.
        """
        ...


class RemoteSource(FeatureSource, RowFiller, Protocol):
    """Rows of other servers; it is used by one thread at a time."""

    def columns(self, node_type: str, ids: NDArray[np.int64], server: int) -> NDArray[Any]:
        """[n, columns]: what one server stores of features that are divided by dimension.

        Raises
        ------
        As :meth:`FeatureSource.gather`.
        """
        ...

    def count_into(self, traffic: Traffic) -> None:
        """From now on count bytes there."""
        ...

    def one_operation(self) -> AbstractContextManager[None]:
        """Let all that is read within share one deadline; elsewhere each read has its own."""
        ...
