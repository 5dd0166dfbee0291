"""The sources of a rank's cache: features of other servers or of all, and learnable records."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cache_server.available_memory import available_memory
from hopper.array_module import array_module
from hopper.cluster import Cluster
from hopper.device_copies import finish_copies, to_device
from hopper.engines import Request, is_fetching
from hopper.features import DeviceRows, PartitionedRows
from hopper.graph.layout import stored_features
from hopper.hetero.cache_plan import CachePlan, TypeProfile
from hopper.hetero.learnable import LearnableRows, distinct
from hopper.hetero.row_cache import RecentRows, RowCache
from hopper.partition.memory import format_bytes

Ids = NDArray[np.int64]
_ROWS_AT_ONCE: Final = 1 << 16
_SHARE_OF_FREE_MEMORY: Final = 0.5
"""The share that records may take. Batches, models and mapped features need the rest."""
_NOTHING: Final = np.empty(0, np.int64)


def list_cacheable_features(request: Request) -> list[str]:
    """Return the node types whose features may be cached, in order of name.

    A cache in device memory may hold all features that the model reads. One in host memory holds
    only features of other servers, if the engine fetches any.
    """
    if is_fetching(request) or request.config.cache.memory == "device":
        return request.reads.featured
    return []


def list_cacheable_tables(request: Request) -> list[str]:
    """Return the tables of learnable rows that are not stored in the model's memory, in order of
    name."""
    if request.config.learnable.storage == "memory":
        return []
    return sorted(set(request.reads.tables.values()))


class CacheSource(ABC):
    """A source of rows for a cache. Rows have ids, by node type or table."""

    def why_decline(self, cluster: Cluster) -> str:
        """Say why caching none of these rows costs less than caching some; "" = it does not.

        Every rank must call it, and all get the same answer.
        """
        return ""

    @abstractmethod
    def describe_types(self) -> dict[str, TypeProfile]:
        """Return a profile without visits, by node type or table: the facts that need no
        sampling."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return, by node type or table, one more than the largest id that :meth:`read` may
        return."""

    @abstractmethod
    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """Find the rows that an iteration reads on this rank; every rank must call it.

        Parameters
        ----------
        nodes: by name of a type in subgraphs, the nodes that this rank reads, in groups.
        where: names the epoch and iteration in errors.

        Returns
        -------
        By node type or table, [n] distinct ids.
        """

    @abstractmethod
    def miss(self, name: str, ids: Ids) -> None:
        """Do the work that missing these rows in the cache causes, to measure its time."""

    @abstractmethod
    def fill(self, plan: CachePlan) -> None:
        """Make the cache that a plan describes."""


class Features(CacheSource):
    """Features of some node types, by global id.

    Parameters
    ----------
    types: the node types.
    stored_as: by name of a type in subgraphs, the node type, if the names differ.
    """

    def __init__(
        self, types: Sequence[str], rows: PartitionedRows, stored_as: Mapping[str, str]
    ) -> None:
        self._types = types
        self._rows = rows
        self._stored_as = stored_as

    def describe_types(self) -> dict[str, TypeProfile]:
        """Describe the stored rows of each node type."""
        profiles = {}
        for node_type in self._types:
            dim, dtype = self._row_form(node_type)
            rows = self._count_cacheable(node_type)
            profiles[node_type] = TypeProfile(dim * dtype.itemsize, rows, _NOTHING, _NOTHING)
        return profiles

    def counts(self) -> dict[str, int]:
        """Return the number of nodes in the whole graph, by node type."""
        return {node_type: self._rows.graph.book.total(node_type) for node_type in self._types}

    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """Find the nodes whose features a cache could provide."""
        ids_by_type: dict[str, list[Ids]] = {node_type: [] for node_type in self._types}
        for name, groups in nodes.items():
            stored = self._stored_as.get(name, name)
            if stored in ids_by_type:
                ids_by_type[stored] += [self._select_cacheable(stored, ids) for ids in groups]
        return {node_type: distinct(groups) for node_type, groups in ids_by_type.items()}

    @abstractmethod
    def _count_cacheable(self, node_type: str) -> int:
        """Return how many rows of a type a cache could hold."""

    @abstractmethod
    def _select_cacheable(self, node_type: str, ids: Ids) -> Ids:
        """Return the ids among some whose rows a cache could hold."""

    @abstractmethod
    def _gather(self, node_type: str, ids: Ids) -> NDArray[Any]:
        """Read rows from where they are stored: [n, dim]."""

    def _make_caches(self, plan: CachePlan, module: ModuleType) -> dict[str, RowCache]:
        """Make a cache with the rows that a plan chose, by node type.

        Parameters
        ----------
        module: the array module (NumPy or CuPy) of the cache's memory.
        """
        cache_class = RecentRows if plan.policy == "lru" else RowCache
        caches: dict[str, RowCache] = {}
        for node_type in self._types:
            total, (dim, dtype) = self._rows.graph.book.total(node_type), self._row_form(node_type)
            caches[node_type] = cache_class(total, plan.room[node_type], dim, dtype, module)
            wanted = np.sort(plan.held[node_type])
            for first in range(0, wanted.size, _ROWS_AT_ONCE):
                ids = wanted[first : first + _ROWS_AT_ONCE]
                rows = self._gather(node_type, ids)
                caches[node_type].put(module.asarray(ids), module.asarray(rows))
        return caches

    def _row_form(self, node_type: str) -> tuple[int, np.dtype[Any]]:
        """Return the number of columns and the dtype of stored rows."""
        stored = stored_features(self._rows.graph.schema.table(node_type))
        assert stored is not None
        return stored.columns, stored.dtype


class RemoteFeatures(Features):
    """Features of other servers, cached in host memory."""

    def miss(self, name: str, ids: Ids) -> None:
        """Fetch the rows from their servers."""
        self._gather(name, ids)

    def fill(self, plan: CachePlan) -> None:
        """Cache the rows in host memory."""
        self._rows.attach_cache(self._make_caches(plan, np))

    def _count_cacheable(self, node_type: str) -> int:
        stored = self._rows.graph.stored(node_type, self._rows.server)
        return self._rows.graph.book.total(node_type) - stored.count

    def _select_cacheable(self, node_type: str, ids: Ids) -> Ids:
        return ids[~self._rows.is_local(node_type, ids)]

    def _gather(self, node_type: str, ids: Ids) -> NDArray[Any]:
        assert self._rows.remote is not None
        return self._rows.remote.gather("features", node_type, ids)


class DeviceFeatures(Features):
    """All features that the rank reads, cached in the memory of its device.

    Parameters
    ----------
    device: the device that the rank trains on.
    fetching: whether the rank reads rows of other servers.

    The other parameters are those of :class:`Features`.
    """

    def __init__(
        self,
        types: Sequence[str],
        rows: PartitionedRows,
        stored_as: Mapping[str, str],
        device: torch.device,
        *,
        fetching: bool,
    ) -> None:
        super().__init__(types, rows, stored_as)
        self._device = device
        self._fetching = fetching

    def miss(self, name: str, ids: Ids) -> None:
        """Gather the rows and copy them to the device."""
        to_device(self._gather(name, ids), self._device)
        finish_copies(self._device)

    def fill(self, plan: CachePlan) -> None:
        """Cache the rows in device memory."""
        caches = self._make_caches(plan, array_module(self._device.type))
        self._rows.on_device = DeviceRows(self._device, caches, self._rows.one_reader)
        # Rows that were read to fill the cache do not count as training's.
        self._rows.take_rows()

    def _count_cacheable(self, node_type: str) -> int:
        if self._fetching:
            return self._rows.graph.book.total(node_type)
        return self._rows.graph.stored(node_type, self._rows.server).count

    def _select_cacheable(self, node_type: str, ids: Ids) -> Ids:
        return ids

    def _gather(self, node_type: str, ids: Ids) -> NDArray[Any]:
        return self._rows.gather("features", node_type, ids)


class StoredRecords(CacheSource):
    """Learnable rows that this rank owns and their optimiser state, stored in host memory."""

    def __init__(self, learnable: LearnableRows) -> None:
        self._learnable = learnable

    def why_decline(self, cluster: Cluster) -> str:
        """Decline on CPUs, where records are updated in place."""
        return "the model is in host memory as they are" if cluster.device.type == "cpu" else ""

    def describe_types(self) -> dict[str, TypeProfile]:
        """Describe the records of each table."""
        return {
            share.name: TypeProfile(
                share.records.record_bytes, len(share.records.stored), _NOTHING, _NOTHING
            )
            for share in self._learnable
        }

    def counts(self) -> dict[str, int]:
        """Return the number of rows that this rank owns, by table. Ids are their numbers."""
        return {share.name: len(share.records.stored) for share in self._learnable}

    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """Find the own rows that any rank asks for."""
        return {
            routes.share.name: distinct(routes.asked)
            for routes in self._learnable.ask(nodes, where)
        }

    def miss(self, name: str, ids: Ids) -> None:
        """Read the records and write them back, as an update does."""
        share, places = self._learnable[name], torch.from_numpy(ids)
        share.records.write(places, share.records.read(places))

    def fill(self, plan: CachePlan) -> None:
        """Cache the records in the model's memory."""
        for share in self._learnable:
            places = None if plan.policy == "lru" else plan.held[share.name]
            share.hold(plan.room[share.name], places)


class RecordsOnDisk(StoredRecords):
    """Learnable rows that this rank owns and their optimiser state, stored in mapped files."""

    def why_decline(self, cluster: Cluster) -> str:
        """Decline if all records fit in memory: the kernel keeps them there by itself."""
        stored = sum(share.records.stored.nbytes for share in self._learnable)
        nbytes = stored * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        free = available_memory()
        short = torch.tensor([int(nbytes > _SHARE_OF_FREE_MEMORY * free)])
        cluster.all_reduce(short, "control", "finding out whether records fit in memory")
        if int(short):
            return ""
        return (
            f"their files, {format_bytes(nbytes)} on this machine, fit in the "
            f"{format_bytes(free)} of memory that is free, where the kernel keeps them"
        )

    def miss(self, name: str, ids: Ids) -> None:
        """Read the records and write them back, to the disk.

        Without the disk the time would depend on what the page cache happens to hold.
        """
        super().miss(name, ids)
        self._learnable[name].write_out()
