"""Pre-gathering: fetching every remote row of an iteration once (HopGNN, section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.features.copy_rows import copy_rows
from hopper.features.partitioned import PartitionedRows, copied_rows
from hopper.features.source import RowKind
from hopper.graph.topology import Ids
from hopper.ops import RowPart, StoredRows

_NOTHING: Final[tuple[Ids, NDArray[Any]]] = np.empty(0, np.int64), np.empty((0, 0))


class PregatheredRows:
    """A source of features that fetches all remote rows when it is made, each once.

    Rows that an ``earlier`` source has are taken from there; it stays as it is.
    """

    def __init__(
        self,
        base: PartitionedRows,
        requests: Mapping[str, Sequence[Ids]],
        earlier: PregatheredRows | None = None,
    ) -> None:
        self._base = base
        # By node type, ascending ids of nodes of other servers, and their rows.
        self._fetched: dict[str, tuple[Ids, NDArray[Any]]] = {}
        if earlier is not None:
            self._fetched |= earlier._fetched
        for node_type, groups in requests.items():
            ids, rows = self._fetched.setdefault(node_type, _NOTHING)
            remote = [group[~base.is_local(node_type, group)] for group in groups]
            missing = np.setdiff1d(np.concatenate([_NOTHING[0], *remote]), ids)
            if missing.size:
                new = base.fetch(node_type, missing)
                all_ids = np.concatenate((ids, missing))
                order = np.argsort(all_ids)
                joined = np.concatenate((rows, new))[order] if ids.size else new
                self._fetched[node_type] = all_ids[order], joined

    def gather(self, kind: RowKind, node_type: str, ids: Ids) -> NDArray[Any]:
        """Read rows; raise GraphError for a remote one that was not requested beforehand."""
        if kind != "features" or node_type not in self._fetched:
            return self._base.gather(kind, node_type, ids)
        local = self._base.is_local(node_type, ids)
        return self._base.gather_with(kind, node_type, ids, local, self._fill)

    def stored(self, node_type: str, ids: Ids) -> StoredRows:
        """Leave rows where they are; see :meth:`InputRows.stored`."""
        if node_type not in self._fetched:
            return self._base.stored(node_type, ids)
        local = self._base.is_local(node_type, ids)
        if self._base.local.are_copied(node_type):
            rows = self._base.gather_with("features", node_type, ids, local, self._fill)
            return copied_rows(rows, local)
        return self._base.stored_with(node_type, ids, local, self._part)

    def _fill(
        self, _kind: RowKind, node_type: str, ids: Ids, out: NDArray[Any], places: Ids
    ) -> None:
        copy_rows(*self._find(node_type, ids), out, places)

    def _part(self, node_type: str, ids: Ids, places: Ids) -> RowPart:
        return RowPart(*map(torch.from_numpy, (*self._find(node_type, ids), places)))

    def _find(self, node_type: str, ids: Ids) -> tuple[NDArray[Any], Ids]:
        """Return the table of fetched rows, and [n] int64, the rows of ids in it."""
        fetched, table = self._fetched[node_type]
        rows = np.searchsorted(fetched, ids)
        is_there = np.take(fetched, rows, mode="clip") == ids if fetched.size else ids < 0
        if not is_there.all():
            missing = ids[~is_there][0]
            raise GraphError(f"features/{node_type}: node {missing} was not pre-gathered")
        return table, rows
