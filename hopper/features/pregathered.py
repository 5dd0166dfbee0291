"""Pre-gathering: fetching every remote row of an iteration once (HopGNN, section 5.2)."""

from __future__ import annotations

import copy
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
    """A source of features that fetches all remote rows when it is made, each once."""

    def __init__(
        self, base: PartitionedRows, requests: Mapping[str, Sequence[NDArray[np.int64]]]
    ) -> None:
        self._base = base
        self._fetched = {
            node_type: _fetch_missing(base, node_type, groups, _NOTHING)
            for node_type, groups in requests.items()
        }

    def with_more(
        self, base: PartitionedRows, requests: Mapping[str, Sequence[NDArray[np.int64]]]
    ) -> PregatheredRows:
        """Return a source of these and further rows, which ``base`` reads and counts from now on.

        Rows that were not fetched before are fetched. This source stays as it is.
        """
        extended = copy.copy(self)
        extended._base = base
        extended._fetched = self._fetched | {
            node_type: _fetch_missing(
                base, node_type, groups, self._fetched.get(node_type, _NOTHING)
            )
            for node_type, groups in requests.items()
        }
        return extended

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Read rows; raise GraphError for a remote one that was not requested beforehand."""
        if kind != "features" or node_type not in self._fetched:
            return self._base.gather(kind, node_type, ids)
        local = self._base.is_local(node_type, ids)
        return self._base.gather_with(kind, node_type, ids, local, self._fetched[node_type])

    def stored(self, node_type: str, ids: NDArray[np.int64]) -> StoredRows:
        """Leave all rows where they are; see :meth:`InputRows.stored`."""
        if node_type not in self._fetched:
            return self._base.stored(node_type, ids)
        local = self._base.is_local(node_type, ids)
        return self._base.stored_with(node_type, ids, local, self._fetched[node_type].part)


def _fetch_missing(
    base: PartitionedRows,
    node_type: str,
    groups: Sequence[NDArray[np.int64]],
    fetched: _FetchedRows,
) -> _FetchedRows:
    """Fetch the groups' remote rows that are not in ``fetched``; return both together."""
    remote = [ids[~base.is_local(node_type, ids)] for ids in groups]
    ids = np.unique(np.concatenate(remote)) if remote else np.empty(0, np.int64)
    missing = ids[~fetched.contains(ids)]
    return fetched.merge(missing, base.fetch(node_type, missing)) if missing.size else fetched


class _FetchedRows:
    """Fetched rows of one node type, found by binary search in their ascending ids."""

    def __init__(self, ids: NDArray[np.int64], rows: NDArray[Any] | None) -> None:
        self._ids = ids
        self._rows = rows

    def contains(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return [n] bool: which of some distinct ids have been fetched."""
        return np.isin(ids, self._ids, assume_unique=True)

    def merge(self, ids: NDArray[np.int64], rows: NDArray[Any]) -> _FetchedRows:
        """Return these rows together with others, of ascending ids that are not among these."""
        if self._rows is None:
            return _FetchedRows(ids, rows)
        all_ids = np.concatenate((self._ids, ids))
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
