"""Pre-gathering: every remote row an iteration needs, fetched once (HopGNN, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.features.copy_rows import copy_rows
from hopper.features.partitioned import PartitionedRows
from hopper.features.source import RowKind


class PregatheredRows:
    """A source of features whose remote rows were all fetched when it was made.

    Duplicates are removed over all groups and layers at once, so a row crosses the network at most
    once an iteration.

    Parameters
    ----------
    base: where rows come from.
    requests: per group, [n] int64 global ids of ``node_type`` that the group will ask for.
    """

    def __init__(
        self, base: PartitionedRows, node_type: str, requests: Sequence[NDArray[np.int64]]
    ) -> None:
        self._base = base
        self._node_type = node_type
        away = [ids[~base.is_local(node_type, ids)] for ids in requests]
        self._ids = np.unique(np.concatenate(away)) if away else np.empty(0, np.int64)
        self._rows: NDArray[Any] | None = None
        if self._ids.size:
            if base.remote is None:
                raise GraphError(f"node {self._ids[0]} is not stored on the only server")
            self._rows = base.remote.gather("features", node_type, self._ids)
            base.rows.remote_unique += int(self._ids.size)

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """See :class:`FeatureSource`; a remote row not asked for beforehand is an error."""
        if kind != "features" or node_type != self._node_type:
            return self._base.gather(kind, node_type, ids)
        local = self._base.is_local(node_type, ids)
        return self._base.gather_with(kind, node_type, ids, local, _Held(self._ids, self._rows))


class _Held:
    """The fetched rows, found again by binary search."""

    def __init__(self, ids: NDArray[np.int64], rows: NDArray[Any] | None) -> None:
        self._ids = ids
        self._rows = rows

    def fill(
        self,
        _kind: RowKind,
        node_type: str,
        ids: NDArray[np.int64],
        out: NDArray[Any],
        places: NDArray[np.int64],
    ) -> None:
        rows = np.searchsorted(self._ids, ids)
        found = self._ids[np.minimum(rows, self._ids.size - 1)] if self._ids.size else ids - 1
        if self._rows is None or (found != ids).any():
            wrong = ids[found != ids][0]
            raise GraphError(f"features/{node_type}: node {wrong} was not pre-gathered")
        copy_rows(self._rows, rows, out, places)
