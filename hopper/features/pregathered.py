"""Pre-gathering: every remote row an iteration needs, fetched once (HopGNN, section 5.2)."""

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
    """A source of features whose remote rows were all fetched when it was made.

    Duplicates are removed over all groups and layers at once, so a row crosses the network at most
    once an iteration.

    Parameters
    ----------
    base: where rows come from.
    requests: by node type, per group, [n] int64 global ids that the group will ask for.
    """

    def __init__(
        self, base: PartitionedRows, requests: Mapping[str, Sequence[NDArray[np.int64]]]
    ) -> None:
        self._base = base
        self._held = {
            node_type: _fetch(base, node_type, groups, _NOTHING)
            for node_type, groups in requests.items()
        }

    def with_more(
        self, base: PartitionedRows, requests: Mapping[str, Sequence[NDArray[np.int64]]]
    ) -> PregatheredRows:
        """The same rows, and what is missing of others that will be asked for, fetched now; others
        are read, and all counted, elsewhere. Parameters as of the class."""
        other = copy.copy(self)
        other._base = base
        other._held = self._held | {
            node_type: _fetch(base, node_type, groups, self._held.get(node_type, _NOTHING))
            for node_type, groups in requests.items()
        }
        return other

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """See :class:`FeatureSource`; a remote row not asked for beforehand is an error."""
        if kind != "features" or node_type not in self._held:
            return self._base.gather(kind, node_type, ids)
        local = self._base.is_local(node_type, ids)
        return self._base.gather_with(kind, node_type, ids, local, self._held[node_type])

    def stored(self, node_type: str, ids: NDArray[np.int64]) -> StoredRows:
        """See :class:`InputRows`; a remote row not asked for beforehand is an error."""
        if node_type not in self._held:
            return self._base.stored(node_type, ids)
        local = self._base.is_local(node_type, ids)
        return self._base.stored_with(node_type, ids, local, self._held[node_type].part)


def _fetch(
    base: PartitionedRows, node_type: str, groups: Sequence[NDArray[np.int64]], held: _Held
) -> _Held:
    """What is held, and those remote rows of the groups that are not."""
    away = [ids[~base.is_local(node_type, ids)] for ids in groups]
    ids = np.unique(np.concatenate(away)) if away else np.empty(0, np.int64)
    missing = ids[~held.contains(ids)]
    return held.joined(missing, base.fetch(node_type, missing)) if missing.size else held


class _Held:
    """The fetched rows, found again by binary search."""

    def __init__(self, ids: NDArray[np.int64], rows: NDArray[Any] | None) -> None:
        self._ids = ids
        self._rows = rows

    def contains(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] bool: which of some ids, ascending, are held."""
        return np.isin(ids, self._ids, assume_unique=True)

    def joined(self, ids: NDArray[np.int64], rows: NDArray[Any]) -> _Held:
        """These and others."""
        if self._rows is None:
            return _Held(ids, rows)
        every = np.concatenate((self._ids, ids))
        order = np.argsort(every)
        return _Held(every[order], np.concatenate((self._rows, rows))[order])

    def fill(
        self,
        _kind: RowKind,
        node_type: str,
        ids: NDArray[np.int64],
        out: NDArray[Any],
        places: NDArray[np.int64],
    ) -> None:
        table, rows = self._find(node_type, ids)
        copy_rows(table, rows, out, places)

    def part(self, node_type: str, ids: NDArray[np.int64], places: NDArray[np.int64]) -> RowPart:
        """The rows where they are; ``places`` as :meth:`LocalRows.part` takes them."""
        table, rows = self._find(node_type, ids)
        return RowPart(*map(torch.from_numpy, (table, rows, places)))

    def _find(
        self, node_type: str, ids: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The rows, and which of them are those of the ids."""
        rows = np.searchsorted(self._ids, ids)
        found = self._ids[np.minimum(rows, self._ids.size - 1)] if self._ids.size else ids - 1
        if self._rows is None or (found != ids).any():
            wrong = ids[found != ids][0]
            raise GraphError(f"features/{node_type}: node {wrong} was not pre-gathered")
        return self._rows, rows


_NOTHING: Final = _Held(np.empty(0, np.int64), None)
