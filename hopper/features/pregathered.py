"""Pre-gathering: fetching every remote row of an iteration once (HopGNN, section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.features.copy_rows import copy_rows
from hopper.features.partitioned import PartitionedRows
from hopper.features.source import RowKind
from hopper.ops import RowPart, StoredRows


class PregatheredRows:
    """A source of features that fetches all remote rows when it is made, each once.

    Rows that an ``earlier`` source has are taken from there; it stays as it is.
    """

    def __init__(
        self,
        base: PartitionedRows,
        requests: Mapping[str, Sequence[NDArray[np.int64]]],
        earlier: PregatheredRows | None = None,
    ) -> None:
        self._base = base
        self._fetched: dict[str, _FetchedRows] = {} if earlier is None else {**earlier._fetched}
        for node_type, groups in requests.items():
            fetched = self._fetched.get(node_type, _NOTHING)
            self._fetched[node_type] = fetched.extend(base, node_type, groups)

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Read rows; raise GraphError for a remote one that was not requested beforehand."""
        if kind != "features" or node_type not in self._fetched:
            return self._base.gather(kind, node_type, ids)
        local = self._base.is_local(node_type, ids)
        return self._base.gather_with(kind, node_type, ids, local, self._fetched[node_type].fill)

    def stored(self, node_type: str, ids: NDArray[np.int64]) -> StoredRows:
        """Leave all rows where they are; see :meth:`InputRows.stored`."""
        if node_type not in self._fetched:
            return self._base.stored(node_type, ids)
        local = self._base.is_local(node_type, ids)
        return self._base.stored_with(node_type, ids, local, self._fetched[node_type].part)


class _FetchedRows:
    """Fetched rows of one node type, found by binary search in their ascending ids."""

    def __init__(self, ids: NDArray[np.int64], rows: NDArray[Any] | None) -> None:
        self._ids = ids
        self._rows = rows

    def extend(
        self, base: PartitionedRows, node_type: str, groups: Sequence[NDArray[np.int64]]
    ) -> _FetchedRows:
        """Return these rows together with the groups' remote rows that are not among them."""
        remote = [ids[~base.is_local(node_type, ids)] for ids in groups]
        ids = np.unique(np.concatenate(remote)) if remote else np.empty(0, np.int64)
        missing = ids[~np.isin(ids, self._ids, assume_unique=True)]
        if not missing.size:
            return self
        rows = base.fetch(node_type, missing)
        if self._rows is None:
            return _FetchedRows(missing, rows)
        all_ids = np.concatenate((self._ids, missing))
        order = np.argsort(all_ids)
        return _FetchedRows(all_ids[order], np.concatenate((self._rows, rows))[order])

    def fill(
        self,
        _kind: RowKind,
        node_type: str,
        ids: NDArray[np.int64],
        out: NDArray[Any],
        places: NDArray[np.int64],
    ) -> None:
        """Copy rows that have been fetched. Parameters as of :meth:`LocalRows.fill`."""
        table, rows = self._find(node_type, ids)
        copy_rows(table, rows, out, places)

    def part(self, node_type: str, ids: NDArray[np.int64], places: NDArray[np.int64]) -> RowPart:
        """Describe where fetched rows are stored; parameters as of :meth:`LocalRows.part`."""
        table, rows = self._find(node_type, ids)
        return RowPart(*map(torch.from_numpy, (table, rows, places)))

    def _find(
        self, node_type: str, ids: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the table of fetched rows, and [n] int64, the rows of ids in it."""
        rows = np.searchsorted(self._ids, ids)
        nearest = self._ids[np.minimum(rows, self._ids.size - 1)] if self._ids.size else ids - 1
        if self._rows is None or (nearest != ids).any():
            missing = ids[nearest != ids][0]
            raise GraphError(f"features/{node_type}: node {missing} was not pre-gathered")
        return self._rows, rows


_NOTHING: Final = _FetchedRows(np.empty(0, np.int64), None)
