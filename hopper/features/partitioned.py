"""Rows of the whole partitioned graph: a rank's own server by file, the others by request."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.features.cached import CachedRows, HeldRows, Lookups
from hopper.features.local import LocalRows
from hopper.features.on_device import DeviceRows
from hopper.features.source import RemoteSource, RowFiller, RowKind
from hopper.partition import PartitionedGraph


@dataclass
class RowCounts:
    """Input rows of a stretch of training.

    local: read from the rank's own server. remote: needed from other servers, counted for every
    group that needs them. remote_unique: those that were fetched. cached: those that were found in
    a cache in host memory. Rows that are held on the device are none of these. lookups: by node
    type, how many were looked for in a cache, wherever it is.
    """

    local: int = 0
    remote: int = 0
    remote_unique: int = 0
    cached: int = 0
    lookups: dict[str, Lookups] = field(default_factory=dict)


class PartitionedRows:
    """Splits a request between this server's files and a source of remote rows.

    Parameters
    ----------
    remote: where rows of other servers come from; None where there is one server only.

    Attributes
    ----------
    on_device: what is held where the rank trains; whoever reads rows for that place looks there
        first, and asks here for those that are missing.
    """

    def __init__(self, graph: PartitionedGraph, server: int, remote: RemoteSource | None) -> None:
        self.graph = graph
        self.server = server
        self.local = LocalRows(graph, server)
        self.remote = remote
        self.rows = RowCounts()
        self.on_device: DeviceRows | None = None
        self._cache: CachedRows | None = None
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="remote-rows")

    def is_local(self, node_type: str, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] bool: which rows this server stores."""
        return self.graph.stored(node_type, self.server).contains(ids)

    def one_operation(self) -> AbstractContextManager[None]:
        """Let all remote rows that are read within share one deadline."""
        return nullcontext() if self.remote is None else self.remote.one_operation()

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """See :class:`FeatureSource`."""
        local = self.is_local(node_type, ids)
        out = self.gather_with(kind, node_type, ids, local, self.remote)
        if kind == "features":
            self.rows.remote_unique += int(ids.size - local.sum())
        return out

    def gather_with(
        self,
        kind: RowKind,
        node_type: str,
        ids: NDArray[np.int64],
        local: NDArray[np.bool_],
        remote: RowFiller | None,
    ) -> NDArray[Any]:
        """:meth:`gather`, with ``local`` known and remote rows taken from ``remote``.

        Local rows are copied while remote ones are on their way.
        """
        away = np.flatnonzero(~local)
        if kind == "features":
            self.rows.local += int(ids.size - away.size)
            self.rows.remote += int(away.size)
        if away.size == 0:
            return self.local.gather(kind, node_type, ids)
        if remote is None:
            raise GraphError(
                f"{kind}/{node_type}: node {ids[away[0]]} is not stored on the only server"
            )
        here = np.flatnonzero(local)
        dim, dtype = self.local.row_format(kind, node_type)
        out = np.empty((ids.size, dim), dtype)
        coming = self._fetcher.submit(remote.fill, kind, node_type, ids[away], out, away)
        try:
            self.local.fill(kind, node_type, ids[here], out, here)
        finally:
            # Nothing may be written to the table behind an error's back.
            wait([coming])
        coming.result()
        return out

    def keep(self, held: Mapping[str, HeldRows]) -> None:
        """From now on look for remote rows there first.

        Parameters
        ----------
        held: by node type.
        """
        assert self.remote is not None
        assert self._cache is None
        self.remote = self._cache = CachedRows(self.remote, held)

    def take_rows(self) -> RowCounts:
        """The counts since the last call; starts from zero again."""
        taken, self.rows = self.rows, RowCounts()
        if self._cache is not None:
            taken.lookups = self._cache.take_lookups()
            taken.cached = sum(each.hits for each in taken.lookups.values())
            taken.remote_unique -= taken.cached
        if self.on_device is not None:
            taken.lookups = self.on_device.take_lookups()
        return taken
