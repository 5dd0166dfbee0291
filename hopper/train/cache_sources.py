"""What a rank's cache may hold: features, of other servers or of all, and learnable records."""

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
from hopper.graph.row_form import stored_features
from hopper.hetero.cache_plan import CachePlan, TypeProfile
from hopper.hetero.learnable import LearnableRows, distinct
from hopper.hetero.row_cache import RecentRows, RowCache
from hopper.partition.memory import format_bytes

Ids = NDArray[np.int64]
_ROWS_AT_ONCE: Final = 1 << 16
_SHARE_OF_FREE_MEMORY: Final = 0.5
"""that records may take; batches, models and mapped features need the rest"""
_NOTHING: Final = np.empty(0, np.int64)


def cached_features(request: Request) -> list[str]:
    """The node types whose features may be held, in order of name: where the rank trains, of any
    that the model reads; otherwise, of those that it reads of other servers."""
    if is_fetching(request) or request.config.cache.memory == "device":
        return request.reads.featured
    return []


def cached_tables(request: Request) -> list[str]:
    """The tables of learnable rows that are not stored where the model is, in order of name."""
    if request.config.learnable.storage == "memory":
        return []
    return sorted(set(request.reads.tables.values()))


class CacheSource(ABC):
    """Where a cache's rows come from, by node type or table."""

    def why_decline(self, cluster: Cluster) -> str:
        """Why to hold none of the rows would cost less; "" = it would not; every rank has to call
        it, and finds the same."""
        return ""

    @abstractmethod
    def known(self) -> dict[str, TypeProfile]:
        """What is known without sampling."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """One more than the largest id that :meth:`read` may yield."""

    @abstractmethod
    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """[n] distinct ids of the rows that an iteration reads here; every rank has to call it.

        Parameters
        ----------
        nodes: by name of a type in subgraphs, the nodes that this rank reads, in groups.
        where: names the moment in errors.
        """

    @abstractmethod
    def miss(self, name: str, ids: Ids) -> None:
        """Do what a miss of rows does."""

    @abstractmethod
    def fill(self, plan: CachePlan) -> None:
        """Hold what a plan says."""


class Features(CacheSource):
    """Features of some node types, by global id.

    Parameters
    ----------
    types: whose.
    stored_as: by name of a type in subgraphs, the node type, where it is not its name.
    """

    def __init__(
        self, types: Sequence[str], rows: PartitionedRows, stored_as: Mapping[str, str]
    ) -> None:
        self._types = types
        self._rows = rows
        self._stored_as = stored_as

    def known(self) -> dict[str, TypeProfile]:
        """See :class:`CacheSource`."""
        found = {}
        for each in self._types:
            dim, dtype = self._row(each)
            rows = self._possible(each)
            found[each] = TypeProfile(dim * dtype.itemsize, rows, _NOTHING, _NOTHING)
        return found

    def counts(self) -> dict[str, int]:
        """See :class:`CacheSource`."""
        return {each: self._rows.graph.book.total(each) for each in self._types}

    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """See :class:`CacheSource`."""
        read: dict[str, list[Ids]] = {each: [] for each in self._types}
        for name, groups in nodes.items():
            stored = self._stored_as.get(name, name)
            if stored in read:
                read[stored] += [self._missing(stored, ids) for ids in groups]
        return {each: distinct(groups) for each, groups in read.items()}

    @abstractmethod
    def _possible(self, node_type: str) -> int:
        """How many rows could be missing."""

    @abstractmethod
    def _missing(self, node_type: str, ids: Ids) -> Ids:
        """Those of ids whose rows are missing, if none is held."""

    @abstractmethod
    def _gather(self, node_type: str, ids: Ids) -> NDArray[Any]:
        """[n, dim]: missing rows."""

    def _filled(self, plan: CachePlan, module: ModuleType) -> dict[str, RowCache]:
        """By type, the rows that a plan holds."""
        kind = RecentRows if plan.policy == "lru" else RowCache
        held: dict[str, RowCache] = {}
        for each in self._types:
            total, (dim, dtype) = self._rows.graph.book.total(each), self._row(each)
            held[each] = kind(total, plan.room[each], dim, dtype, module)
            wanted = np.sort(plan.held[each])
            for first in range(0, wanted.size, _ROWS_AT_ONCE):
                ids = wanted[first : first + _ROWS_AT_ONCE]
                rows = self._gather(each, ids)
                held[each].put(module.asarray(ids), module.asarray(rows))
        return held

    def _row(self, node_type: str) -> tuple[int, np.dtype[Any]]:
        stored = stored_features(self._rows.graph.schema.table(node_type))
        assert stored is not None
        return stored.columns, stored.dtype


class RemoteFeatures(Features):
    """Those of other servers, held in host memory; parameters as of :class:`Features`."""

    def miss(self, name: str, ids: Ids) -> None:
        """See :class:`CacheSource`."""
        self._gather(name, ids)

    def fill(self, plan: CachePlan) -> None:
        """See :class:`CacheSource`."""
        self._rows.keep(self._filled(plan, np))

    def _possible(self, node_type: str) -> int:
        stored = self._rows.graph.stored(node_type, self._rows.server)
        return self._rows.graph.book.total(node_type) - stored.count

    def _missing(self, node_type: str, ids: Ids) -> Ids:
        return ids[~self._rows.is_local(node_type, ids)]

    def _gather(self, node_type: str, ids: Ids) -> NDArray[Any]:
        assert self._rows.remote is not None
        return self._rows.remote.gather("features", node_type, ids)


class DeviceFeatures(Features):
    """All that the rank reads, held where it trains.

    Parameters
    ----------
    types, rows, stored_as: as of :class:`Features`.
    device: where the rank trains.
    fetching: whether it reads rows of other servers.
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
        """See :class:`CacheSource`."""
        to_device(self._gather(name, ids), self._device)
        finish_copies(self._device)

    def fill(self, plan: CachePlan) -> None:
        """See :class:`CacheSource`."""
        held = self._filled(plan, array_module(self._device.type))
        self._rows.on_device = DeviceRows(self._device, held, self._rows.one_reader)
        # What was read to fill it is not training's.
        self._rows.take_rows()

    def _possible(self, node_type: str) -> int:
        if self._fetching:
            return self._rows.graph.book.total(node_type)
        return self._rows.graph.stored(node_type, self._rows.server).count

    def _missing(self, node_type: str, ids: Ids) -> Ids:
        return ids

    def _gather(self, node_type: str, ids: Ids) -> NDArray[Any]:
        return self._rows.gather("features", node_type, ids)


class StoredRecords(CacheSource):
    """Learnable rows that this rank owns, with the optimiser's state, in host memory."""

    def __init__(self, learnable: LearnableRows) -> None:
        self._learnable = learnable

    def why_decline(self, cluster: Cluster) -> str:
        """See :class:`CacheSource`: on the CPU, records are updated where they are."""
        return "the model is in host memory as they are" if cluster.device.type == "cpu" else ""

    def known(self) -> dict[str, TypeProfile]:
        """See :class:`CacheSource`."""
        return {
            share.name: TypeProfile(
                share.records.record_bytes, len(share.records.stored), _NOTHING, _NOTHING
            )
            for share in self._learnable
        }

    def counts(self) -> dict[str, int]:
        """See :class:`CacheSource`: ids are places among the rank's own rows."""
        return {share.name: len(share.records.stored) for share in self._learnable}

    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """See :class:`CacheSource`: those that any rank asks for."""
        return {
            routes.share.name: distinct(routes.asked)
            for routes in self._learnable.ask(nodes, where)
        }

    def miss(self, name: str, ids: Ids) -> None:
        """See :class:`CacheSource`: a record is read, and written back after its update."""
        share, places = self._learnable[name], torch.from_numpy(ids)
        share.records.write(places, share.records.read(places))

    def fill(self, plan: CachePlan) -> None:
        """See :class:`CacheSource`."""
        for share in self._learnable:
            places = None if plan.policy == "lru" else plan.held[share.name]
            share.hold(plan.room[share.name], places)


class RecordsOnDisk(StoredRecords):
    """The same in mapped files."""

    def why_decline(self, cluster: Cluster) -> str:
        """See :class:`CacheSource`: where all of them fit in memory the kernel keeps them there,
        and they are read and updated in place."""
        stored = sum(share.records.stored.nbytes for share in self._learnable)
        needed = stored * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        free = available_memory()
        short = torch.tensor([int(needed > _SHARE_OF_FREE_MEMORY * free)])
        cluster.all_reduce(short, "control", "finding out whether records fit in memory")
        if int(short):
            return ""
        return (
            f"their files, {format_bytes(needed)} on this machine, fit in the "
            f"{format_bytes(free)} of memory that is free, where the kernel keeps them"
        )

    def miss(self, name: str, ids: Ids) -> None:
        """See :class:`CacheSource`: as far as the disk. What lies in the page cache would tell of
        the moment, not of the type."""
        super().miss(name, ids)
        self._learnable[name].write_out()
