"""Rows of the whole partitioned graph: local ones read from files, remote ones fetched."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import RLock
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster.traffic import Traffic
from hopper.errors import GraphError
from hopper.features.cached import CachedRows, DeviceRows, Lookups
from hopper.features.local import LocalRows
from hopper.features.remote import RemoteRows
from hopper.features.row_cache import ReadyRows, RowCache
from hopper.features.source import Mask, RemoteSource, RowKind
from hopper.graph.topology import Ids
from hopper.ops import RowPart, StoredRows
from hopper.partition import PartitionedGraph


@dataclass
class RowCounts:
    """Numbers of input rows that were read, by source, without those cached on the device: remote
    ones for every group that needs them, ``remote_unique`` ones as they are fetched. ``lookups``
    are those of all caches, by node type, on the device too."""

    local: int = 0
    remote: int = 0
    remote_unique: int = 0
    cached: int = 0
    lookups: dict[str, Lookups] = field(default_factory=dict)

    def add(self, other: RowCounts) -> None:
        """Add another count to this one."""
        self.local += other.local
        self.remote += other.remote
        self.remote_unique += other.remote_unique
        self.cached += other.cached
        for node_type, counted in other.lookups.items():
            self.lookups[node_type] = self.lookups.get(node_type, Lookups()).plus(counted)


class PartitionedRows:
    """Reads local rows from this server's files and remote ones from a source of remote rows.

    Several threads may read at once, but only the one that holds ``one_reader`` reads from other
    servers. ``servers`` are the connections to them, and ``remote`` reads their rows, through the
    caches that are attached; both are None where there is only one server. ``on_device`` are the
    rows cached on the device that trains, if any, which readers ask first. Bytes between servers
    are counted in ``traffic``.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        server: int,
        remote: RemoteRows | None,
        traffic: Traffic | None = None,
    ) -> None:
        self.graph = graph
        self.server = server
        self.local = LocalRows(graph, server)
        self.servers = remote
        self.remote: RemoteSource | None = remote
        self.rows = RowCounts()
        self.traffic = traffic or Traffic()
        self.on_device: DeviceRows | None = None
        self._cache: CachedRows | None = None
        self._ahead: CachedRows | None = None
        self.one_reader = RLock()
        # Each process has its own, also a forked one.
        self._fetchers = cache(_start_fetchers)

    def with_own_counts(self) -> PartitionedRows:
        """Return a view of the same rows that counts for itself, until :meth:`take_over`."""
        view = copy.copy(self)
        view.rows, view.traffic = RowCounts(), self.traffic.apart()
        return view

    def with_ready(self, ready: Mapping[str, ReadyRows]) -> PartitionedRows:
        """Return a view of the same rows that takes features from those that were read before, by
        node type."""
        view = copy.copy(self)
        view.local = self.local.with_ready(ready)
        view.remote = None if self.remote is None else CachedRows(self.remote, ready)
        return view

    def read_early(self, node_type: str, ids: Ids) -> tuple[NDArray[Any], Mask]:
        """Read features [n, dim] of distinct nodes of any servers for :class:`ReadyRows`, and
        return which are of other servers. Whoever reads those counts them as read."""
        local = self.is_local(node_type, ids)
        view = self.with_own_counts()
        features = view._gather("features", node_type, ids, local)
        self.traffic.add(view.traffic.take())
        self.rows.add(RowCounts(lookups=view.rows.lookups))
        return features, ~local

    def take_over(self, other: PartitionedRows) -> None:
        """Add the counts of ``other`` to these, and set them to zero there."""
        self.rows.add(other.rows)
        self.traffic.add(other.traffic.take())
        other.rows = RowCounts()

    def is_local(self, node_type: str, ids: Ids) -> Mask:
        """Return [n] bool: which rows this server stores."""
        return self.graph.stored(node_type, self.server).contains(ids)

    def uncached(self, node_type: str, ids: Ids) -> Ids:
        """Return those of [n] int64 ids that no cache holds permanently."""
        if self.on_device is not None and not self.on_device.evicts:
            ids = self.on_device.absent(node_type, ids)
        return ids if self._cache is None else self._cache.uncached(node_type, ids)

    @contextmanager
    def one_operation(self) -> Iterator[None]:
        """Let all reads of remote rows in the block share one deadline."""
        if self.servers is None:
            yield
            return
        with self.one_reader, self.servers.one_operation():
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Hold the lock for reading from other servers, and count rows and bytes of the block."""
        with self.one_reader:
            if self.servers is not None:
                self.servers.count_into(self.traffic)
            try:
                yield
            finally:
                if self._cache is not None:
                    self.rows.add(RowCounts(lookups=self._cache.take_lookups()))
                if self._ahead is not None:
                    self.rows.add(_count_hits(self._ahead.take_lookups()))

    def gather(self, kind: RowKind, node_type: str, ids: Ids) -> NDArray[Any]:
        """Read rows of any servers; see :meth:`FeatureSource.gather`."""
        return self._gather(kind, node_type, ids, self.is_local(node_type, ids))

    def _gather(self, kind: RowKind, node_type: str, ids: Ids, local: Mask) -> NDArray[Any]:
        if self.remote is None or local.all():
            return self.gather_with(kind, node_type, ids, local, None)
        with self._reading():
            out = self.gather_with(kind, node_type, ids, local, self.remote.fill)
        if kind == "features":
            self.rows.remote_unique += int(ids.size - local.sum())
        return out

    def stored(self, node_type: str, ids: Ids) -> StoredRows:
        """Fetch remote rows, leave mapped local ones in place; see :meth:`InputRows.stored`."""
        local = self.is_local(node_type, ids)
        if self.local.are_copied(node_type):
            return copied_rows(self._gather("features", node_type, ids, local), local)

        def fetch(name: str, ids: Ids, places: Ids) -> RowPart:
            return RowPart(torch.from_numpy(self.fetch(name, ids)), None, torch.from_numpy(places))

        return self.stored_with(node_type, ids, local, fetch)

    def stored_with(
        self, node_type: str, ids: Ids, local: Mask, remote: Callable[[str, Ids, Ids], RowPart]
    ) -> StoredRows:
        """Do what :meth:`stored` does with remote rows from a function."""
        local_places, remote_places = np.flatnonzero(local), np.flatnonzero(~local)
        self.rows.local += int(local_places.size)
        self.rows.remote += int(remote_places.size)
        parts = []
        if local_places.size or not remote_places.size:
            places = local_places if remote_places.size else None
            parts.append(self.local.part(node_type, ids[local_places], places))
        if remote_places.size:
            parts.append(remote(node_type, ids[remote_places], remote_places))
        return StoredRows.of(parts, ids.size)

    def whole(self, node_type: str, ids: Ids) -> StoredRows:
        """Do what :meth:`stored` does, with other servers' columns of features by dimension."""
        if self.servers is None or self.graph.layout.has_whole_rows(node_type):
            return self.stored(node_type, ids)
        with self._reading():
            parts = [
                self.local.gather("features", node_type, ids)
                if server == self.server
                else self.servers.columns(node_type, ids, server)
                for server in range(self.graph.book.servers)
            ]
        return StoredRows.of([RowPart(torch.from_numpy(np.concatenate(parts, 1)))], ids.size)

    def fetch(self, node_type: str, ids: Ids) -> NDArray[Any]:
        """Fetch features of distinct nodes of other servers, [n, dim], and count them as fetched;
        whoever reads them counts that."""
        if self.remote is None:
            raise _not_stored("features", node_type, ids[0])
        with self._reading():
            rows = self.remote.gather("features", node_type, ids)
        self.rows.remote_unique += int(ids.size)
        return rows

    def gather_with(
        self, kind: RowKind, node_type: str, ids: Ids, local: Mask, fill: Callable[..., None] | None
    ) -> NDArray[Any]:
        """Do what :meth:`gather` does with remote rows from a function like ``RemoteSource.fill``,
        while local ones, [n] bool, are copied."""
        remote_places = np.flatnonzero(~local)
        if kind == "features":
            self.rows.local += int(ids.size - remote_places.size)
            self.rows.remote += int(remote_places.size)
        if remote_places.size == 0:
            return self.local.gather(kind, node_type, ids)
        if fill is None:
            raise _not_stored(kind, node_type, ids[remote_places[0]])
        local_places = np.flatnonzero(local)
        dim, dtype = self.local.row_format(kind, node_type)
        out = np.empty((ids.size, dim), dtype)
        fetching = self._fetchers(os.getpid()).submit(
            fill, kind, node_type, ids[remote_places], out, remote_places
        )
        try:
            self.local.fill(kind, node_type, ids[local_places], out, local_places)
        finally:
            # Even after an error no thread may go on writing to ``out``.
            wait([fetching])
        fetching.result()
        return out

    def attach_cache(self, caches: Mapping[str, RowCache]) -> None:
        """Look remote rows up in caches, by node type, first from now on."""
        assert self.remote is not None
        assert self._cache is None
        self.remote = self._cache = CachedRows(self.remote, caches)

    def attach_prefetch(self, caches: Mapping[str, RowCache]) -> None:
        """Look rows that :meth:`attach_cache`'s lack up in further caches, which keep those that
        coming iterations read too. They take the place of those attached before."""
        assert self.servers is not None
        self._ahead = CachedRows(self.servers, caches)
        if self._cache is None:
            self.remote = self._ahead
        else:
            self._cache.read_from(self._ahead)

    def take_rows(self) -> RowCounts:
        """Return the counts since the last call, and set them to zero."""
        self.take_device_lookups()
        counts, self.rows = self.rows, RowCounts()
        if self._cache is not None:
            # Node types without any lookup are listed as well.
            counts.add(RowCounts(lookups=dict.fromkeys(self._cache.node_types, Lookups())))
            counts.add(_count_hits(counts.lookups))
        return counts

    def take_device_lookups(self) -> None:
        """Count the lookups that this thread has made on the device since the last call."""
        if self.on_device is not None:
            self.rows.add(RowCounts(lookups=self.on_device.take_lookups()))


def copied_rows(rows: NDArray[Any], local: Mask) -> StoredRows:
    """Return stored rows that were copied to an array [n, columns], of which some are ``local``.

    They are multiplied in the same parts as rows that stay in their files, to the same bits.
    """
    table = torch.from_numpy(rows)
    if local.all():
        return StoredRows.of([RowPart(table)], len(rows))
    places = [torch.from_numpy(np.flatnonzero(part)) for part in (local, ~local)]
    parts = [RowPart(table, of_part, of_part) for of_part in places if len(of_part)]
    return StoredRows.of(parts, len(rows))


def _start_fetchers(_process: int) -> ThreadPoolExecutor:
    """Return threads that read remote rows, for the reader of other servers and the reader of
    pre-gathered rows, which may run at once."""
    # numba keeps its number of threads per thread, so each must be told.
    set_threads, threads = numba.set_num_threads, numba.get_num_threads()
    return ThreadPoolExecutor(2, "remote-rows", set_threads, (threads,))


def _count_hits(lookups: Mapping[str, Lookups]) -> RowCounts:
    """Return the change of counts for rows that were cached and had counted as fetched."""
    hits = sum(one.hits for one in lookups.values())
    return RowCounts(cached=hits, remote_unique=-hits)


def _not_stored(kind: RowKind, node_type: str, node: int) -> GraphError:
    return GraphError(f"{kind}/{node_type}: node {node} is not stored on the only server")
