"""What a rank's cache may hold: features of other servers, and learnable records on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.config import Config
from hopper.engines.assemble import FETCHING_ENGINES
from hopper.engines.typed_reads import learnable_tables, typed_inputs
from hopper.features import PartitionedRows
from hopper.graph.schema import GraphSchema
from hopper.hetero.cache_plan import CachePlan, TypeProfile
from hopper.hetero.learnable import LearnableRows, distinct
from hopper.hetero.row_cache import RecentRows, RowCache

Ids = NDArray[np.int64]
_ROWS_AT_ONCE: Final = 1 << 16
_NOTHING: Final = np.empty(0, np.int64)


def cached_features(config: Config, schema: GraphSchema) -> list[str]:
    """The node types whose features the model reads of other servers, in order of name."""
    if config.train.engine not in FETCHING_ENGINES:
        return []
    if not config.model.typed:
        return [schema.target_type()]
    return sorted(
        each for each in typed_inputs(config, schema) if schema.node_types[each].feature_dim
    )


def cached_tables(config: Config, schema: GraphSchema) -> list[str]:
    """The tables of learnable rows that are on disk, in order of name."""
    if config.learnable.storage != "mmap":
        return []
    return sorted(set(learnable_tables(config, schema).values()))


class CacheSource(ABC):
    """Where a cache's rows come from, by node type or table."""

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


class RemoteFeatures(CacheSource):
    """Features of other servers.

    Parameters
    ----------
    types: whose.
    stored_as: by name of a type in subgraphs, the node type, where it is not its name.
    """

    def __init__(
        self, types: Sequence[str], rows: PartitionedRows, stored_as: Mapping[str, str]
    ) -> None:
        assert rows.remote is not None
        self._types = types
        self._rows = rows
        self._remote = rows.remote
        self._stored_as = stored_as

    def known(self) -> dict[str, TypeProfile]:
        """See :class:`CacheSource`."""
        graph, found = self._rows.graph, {}
        for each in self._types:
            away = graph.book.total(each) - graph.stored(each, self._rows.server).count
            dim, dtype = self._row(each)
            found[each] = TypeProfile(dim * dtype.itemsize, away, _NOTHING, _NOTHING)
        return found

    def counts(self) -> dict[str, int]:
        """See :class:`CacheSource`: ids are global ones."""
        return {each: self._rows.graph.book.total(each) for each in self._types}

    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """See :class:`CacheSource`."""
        read: dict[str, list[Ids]] = {each: [] for each in self._types}
        for name, groups in nodes.items():
            stored = self._stored_as.get(name, name)
            if stored in read:
                read[stored] += [ids[~self._rows.is_local(stored, ids)] for ids in groups]
        return {each: distinct(groups) for each, groups in read.items()}

    def miss(self, name: str, ids: Ids) -> None:
        """See :class:`CacheSource`."""
        self._remote.gather("features", name, ids)

    def fill(self, plan: CachePlan) -> None:
        """See :class:`CacheSource`."""
        kind = RecentRows if plan.policy == "lru" else RowCache
        held: dict[str, RowCache] = {}
        for each in self._types:
            dim, dtype = self._row(each)
            held[each] = kind(self._rows.graph.book.total(each), plan.room[each], dim, dtype)
            wanted = np.sort(plan.held[each])
            for first in range(0, wanted.size, _ROWS_AT_ONCE):
                ids = wanted[first : first + _ROWS_AT_ONCE]
                held[each].put(ids, self._remote.gather("features", each, ids))
        self._rows.keep(held)

    def _row(self, node_type: str) -> tuple[int, np.dtype[Any]]:
        own = self._rows.graph.schema.node_types[node_type]
        assert own.feature_dim is not None
        return own.feature_dim, np.dtype(own.feature_dtype)


class RecordsOnDisk(CacheSource):
    """Learnable rows that this rank owns, with the optimiser's state.

    Parameters
    ----------
    tables: which.
    """

    def __init__(self, tables: Sequence[str], learnable: LearnableRows) -> None:
        self._learnable = learnable
        self._records = {each: learnable.records[each] for each in tables}

    def known(self) -> dict[str, TypeProfile]:
        """See :class:`CacheSource`."""
        return {
            each: TypeProfile(records.record_bytes, len(records.stored), _NOTHING, _NOTHING)
            for each, records in self._records.items()
        }

    def counts(self) -> dict[str, int]:
        """See :class:`CacheSource`: ids are places among the rank's own rows."""
        return {each: len(records.stored) for each, records in self._records.items()}

    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """See :class:`CacheSource`: those that any rank asks for."""
        _, asked = self._learnable.ask(nodes, where)
        return {each: distinct([own.numpy() for own in asked[each]]) for each in self._records}

    def miss(self, name: str, ids: Ids) -> None:
        """See :class:`CacheSource`: a record is read, and written back after its update."""
        records, places = self._records[name], torch.from_numpy(ids)
        records.write(places, records.read(places))

    def fill(self, plan: CachePlan) -> None:
        """See :class:`CacheSource`."""
        room = {each: plan.room[each] for each in self._records}
        self._learnable.hold(room, None if plan.policy == "lru" else plan.held)
