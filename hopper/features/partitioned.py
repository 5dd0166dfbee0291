"""Rows of the whole partitioned graph: a rank's own server by file, the others by request."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.features.cached import CachedRows, HeldRows, Lookups
from hopper.features.local import LocalRows
from hopper.features.on_device import DeviceRows
from hopper.features.source import RemoteSource, RowFiller, RowKind
from hopper.ops import RowPart, StoredRows
from hopper.partition import PartitionedGraph
from hopper.traffic import Traffic


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

    def add(self, other: RowCounts) -> None:
        """Count another stretch too."""
        self.local += other.local
        self.remote += other.remote
        self.remote_unique += other.remote_unique
        self.cached += other.cached
        for name, found in other.lookups.items():
            self.lookups[name] = self.lookups.get(name, Lookups()).plus(found)


class PartitionedRows:
    """Splits a request between this server's files and a source of remote rows.

    Several threads may read; of other servers one reads at a time.

    Parameters
    ----------
    remote: where rows of other servers come from; None where there is one server only.
    traffic: where bytes between servers are counted.

    Attributes
    ----------
    on_device: what is held where the rank trains; whoever reads rows for that place looks there
        first, and asks here for those that are missing.
    one_reader: held by whoever reads from other servers.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        server: int,
        remote: RemoteSource | None,
        traffic: Traffic | None = None,
    ) -> None:
        self.graph = graph
        self.server = server
        self.local = LocalRows(graph, server)
        self.remote = remote
        self.rows = RowCounts()
        self.traffic = traffic or Traffic()
        self.on_device: DeviceRows | None = None
        self._cache: CachedRows | None = None
        self._ahead: CachedRows | None = None
        self.one_reader = RLock()
        # One for who reads from other servers, one for who reads rows that have come from there.
        # numba's number of threads is every thread's own.
        self._fetchers = ThreadPoolExecutor(
            2,
            thread_name_prefix="remote-rows",
            initializer=numba.set_num_threads,
            initargs=(numba.get_num_threads(),),
        )

    def counted_apart(self) -> PartitionedRows:
        """The same rows, but rows and bytes that are read here are counted here alone, until they
        are taken over."""
        other = copy.copy(self)
        other.rows, other.traffic = RowCounts(), self.traffic.apart()
        return other

    def take_over(self, other: PartitionedRows) -> None:
        """Count what was read elsewhere as read here; it starts from zero again."""
        self.rows.add(other.rows)
        self.traffic.add(other.traffic.take())
        other.rows = RowCounts()

    def is_local(self, node_type: str, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] bool: which rows this server stores."""
        return self.graph.stored(node_type, self.server).contains(ids)

    def is_mapped(self, node_type: str) -> bool:
        """Whether this server's features of a type lie in a file, where they are read in place."""
        return node_type not in self.graph.feature_sources

    def not_kept(self, node_type: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of [n] int64 ids of other servers whose rows no cache has for good."""
        if self.on_device is not None and not self.on_device.evicts:
            ids = self.on_device.absent(node_type, ids)
        return ids if self._cache is None else self._cache.not_kept(node_type, ids)

    @contextmanager
    def one_operation(self) -> Iterator[None]:
        """Let all remote rows that are read within share one deadline."""
        if self.remote is None:
            yield
            return
        with self.one_reader, self.remote.one_operation():
            yield

    @contextmanager
    def _reading(self, remote: RemoteSource) -> Iterator[None]:
        """Be the one who reads from other servers; what this takes is counted here."""
        with self.one_reader:
            remote.count_into(self.traffic)
            try:
                yield
            finally:
                if self._cache is not None:
                    self.rows.add(RowCounts(lookups=self._cache.take_lookups()))
                if self._ahead is not None:
                    found = sum(each.hits for each in self._ahead.take_lookups().values())
                    self.rows.add(RowCounts(cached=found, remote_unique=-found))

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """See :class:`FeatureSource`."""
        local = self.is_local(node_type, ids)
        if self.remote is None or local.all():
            return self.gather_with(kind, node_type, ids, local, None)
        with self._reading(self.remote):
            out = self.gather_with(kind, node_type, ids, local, self.remote)
        if kind == "features":
            self.rows.remote_unique += int(ids.size - local.sum())
        return out

    def stored(self, node_type: str, ids: NDArray[np.int64]) -> StoredRows:
        """See :class:`InputRows`."""
        local = self.is_local(node_type, ids)
        return self.stored_with(node_type, ids, local, self._fetched)

    def stored_with(
        self,
        node_type: str,
        ids: NDArray[np.int64],
        local: NDArray[np.bool_],
        remote: Callable[[str, NDArray[np.int64], NDArray[np.int64]], RowPart],
    ) -> StoredRows:
        """:meth:`stored`, with ``local`` known.

        Parameters
        ----------
        remote: makes the part of other servers' rows, of node type, ids and places in the whole.
        """
        here, away = np.flatnonzero(local), np.flatnonzero(~local)
        self.rows.local += int(here.size)
        self.rows.remote += int(away.size)
        parts = []
        if here.size or not away.size:
            parts.append(self.local.part(node_type, ids[here], here if away.size else None))
        if away.size:
            parts.append(remote(node_type, ids[away], away))
        return StoredRows.of(parts, ids.size)

    def _fetched(
        self, node_type: str, ids: NDArray[np.int64], places: NDArray[np.int64]
    ) -> RowPart:
        return RowPart(torch.from_numpy(self.fetch(node_type, ids)), None, torch.from_numpy(places))

    def whole(self, node_type: str, ids: NDArray[np.int64]) -> StoredRows:
        """[n, dim]: as :meth:`stored`, which is what this server has of them where features are
        divided by dimension; other servers' columns are then fetched too."""
        if self.remote is None or self.graph.layout.has_whole_rows(node_type):
            return self.stored(node_type, ids)
        with self._reading(self.remote):
            parts = [
                self.local.gather("features", node_type, ids)
                if server == self.server
                else self.remote.columns(node_type, ids, server)
                for server in range(self.graph.book.servers)
            ]
        rows = torch.from_numpy(np.concatenate(parts, 1))
        return StoredRows.of([RowPart(rows)], ids.size)

    def own(self, node_type: str, ids: NDArray[np.int64], mine: NDArray[np.bool_]) -> StoredRows:
        """[n, dim]: features of distinct nodes, zeros where they are not ``mine`` [n], which are
        nodes of this server."""
        places = np.flatnonzero(mine)
        self.rows.local += int(places.size)
        return StoredRows.of([self.local.part(node_type, ids[places], places)], ids.size)

    def fetch(self, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """[n, dim]: features of distinct nodes of other servers, to be read from here later.

        Raises
        ------
        As :meth:`gather`.
        """
        if self.remote is None:
            raise _not_stored("features", node_type, ids[0])
        with self._reading(self.remote):
            rows = self.remote.gather("features", node_type, ids)
        self.rows.remote_unique += int(ids.size)
        return rows

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
            raise _not_stored(kind, node_type, ids[away[0]])
        here = np.flatnonzero(local)
        dim, dtype = self.local.row_format(kind, node_type)
        out = np.empty((ids.size, dim), dtype)
        coming = self._fetchers.submit(remote.fill, kind, node_type, ids[away], out, away)
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

    def keep_for_later(self, held: Mapping[str, HeldRows]) -> None:
        """From now on keep rows that coming iterations read too; what no cache has is looked for
        there.

        Parameters
        ----------
        held: by node type.
        """
        assert self.remote is not None
        if self._cache is None:
            self.remote = self._ahead = CachedRows(self.remote, held)
        else:
            self._ahead = self._cache.ask_first(held)

    def take_rows(self) -> RowCounts:
        """The counts since the last call; starts from zero again."""
        self.take_device_lookups()
        taken, self.rows = self.rows, RowCounts()
        if self._cache is not None:
            # Of types that were not looked for too.
            taken.add(RowCounts(lookups=dict.fromkeys(self._cache.node_types, Lookups())))
            found = sum(each.hits for each in taken.lookups.values())
            taken.add(RowCounts(cached=found, remote_unique=-found))
        return taken

    def take_device_lookups(self) -> None:
        """Count here what this thread has looked for on the device since it last did."""
        if self.on_device is not None:
            self.rows.add(RowCounts(lookups=self.on_device.take_lookups()))


def _not_stored(kind: RowKind, node_type: str, node: int) -> GraphError:
    return GraphError(f"{kind}/{node_type}: node {node} is not stored on the only server")
