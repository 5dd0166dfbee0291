"""Making a rank's cache before the first iteration: profiling, planning and filling it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines import (
    AUTO,
    Request,
    TrainStep,
    engines_of,
    fetching_engines,
    is_fetching,
)
from hopper.engines.assemble import make_schedule
from hopper.errors import GraphError, RequestError
from hopper.features import PartitionedRows
from hopper.hetero.cache_plan import TypeProfile, cache_bytes, plan_cache
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file, save_profile
from hopper.hetero.presample import FIRST_EPOCH, VisitCounter, Visited, miss_penalty
from hopper.partition.memory import format_bytes
from hopper.train.cache_sources import (
    CacheSource,
    DeviceFeatures,
    Features,
    RecordsOnDisk,
    RemoteFeatures,
    StoredRecords,
    list_cacheable_features,
    list_cacheable_tables,
)

_TOGETHER: Final = 16
"""Number of iterations after which presampling ranks wait for each other."""


def check_profile(request: Request) -> None:
    """Refuse to profile a run that has nothing to cache.

    Raises
    ------
    RequestError: names the key, what was expected and what was given.
    """
    config, graph = request.config, request.graph
    if config.train.engine == AUTO:
        raise RequestError(
            "train.engine: visits are those of one engine; expected the one that is to train, "
            f"given {AUTO}"
        )
    if list_cacheable_tables(request) or (
        config.cache.memory == "device" and list_cacheable_features(request)
    ):
        return
    if not is_fetching(request):
        raise RequestError(
            f"train.engine: expected one that reads rows of other servers "
            f'({fetching_engines()}), or learnable.storage = "host" or "mmap" of a graph with '
            f"learnable rows; given {config.train.engine}"
        )
    if graph.book.servers == 1:
        raise RequestError(f"data.partitioned: {graph.path} has one server, so no row is remote")


def profile_key(request: Request) -> dict[str, Any]:
    """Return all facts, besides the partition, that visit counts depend on."""
    config = request.config
    train, model = config.train, config.model
    (engine,) = engines_of(request)
    placement = request.graph.placement(config.cluster.ranks_per_server)
    return {
        "plan": engine.spec.plan_key(config),
        "types": list_cacheable_features(request),
        "memory": config.cache.memory,
        "tables": [placement.dealing, *list_cacheable_tables(request)],
        "layers": model.layers,
        "metapaths": model.metapaths,
        "sampler": config.sampler.model_dump(exclude={"device"}),
        "batch_size": train.batch_size,
        "last_batch": train.last_batch,
        "iterations_per_epoch": train.iterations_per_epoch,
        "seed": train.seed,
        "ranks": request.ranks,
        "epochs": config.cache.presample_epochs,
        "task": config.task.model_dump() if request.schema.target_relations else {},
    }


@dataclass(frozen=True)
class CacheMaker:
    """Makes the cache of a rank, for the rows that its engine's plans read.

    Attributes
    ----------
    engine: the engine whose plans are counted.
    say: prints a line on rank 0.
    """

    engine: TrainStep
    say: Callable[[str], None]

    @property
    def request(self) -> Request:
        """The run's configuration and graph."""
        return self.engine.state.request

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return self.request.config

    @property
    def cluster(self) -> Cluster:
        """The run's cluster."""
        return self.engine.state.cluster

    @property
    def rows(self) -> PartitionedRows:
        """The rows that the rank can read."""
        return self.engine.state.rows

    @property
    def _file(self) -> Path:
        path = self.request.graph.path
        return profile_file(path, profile_key(self.request), self.cluster.rank)

    @cached_property
    def _sources(self) -> dict[str, CacheSource]:
        """The source of each node type's or table's rows, in the same order on every rank."""
        config = self.config
        sources: dict[str, CacheSource] = {}
        features = list_cacheable_features(self.request)
        stored_as = self.request.reads.types
        if features and config.cache.memory == "device":
            device, fetching = self.cluster.device, is_fetching(self.request)
            source: Features = DeviceFeatures(
                features, self.rows, stored_as, device, fetching=fetching
            )
            sources |= dict.fromkeys(features, source)
        elif features and self.rows.remote is not None:
            sources |= dict.fromkeys(features, RemoteFeatures(features, self.rows, stored_as))
        tables = list_cacheable_tables(self.request)
        if tables:
            records_class = RecordsOnDisk if config.learnable.storage == "mmap" else StoredRecords
            sources |= dict.fromkeys(tables, records_class(self.engine.state.learnable))
        return sources

    def _distinct_sources(self) -> list[CacheSource]:
        return list(dict.fromkeys(self._sources.values()))

    def warm(self) -> None:
        """Make the cache that the configuration asks for; every rank must call it."""
        cache_config = self.config.cache
        if cache_config.policy == "none":
            return
        if not self._sources:
            self.say(
                f"cache: {self.config.train.engine} reads no rows of other servers here, and none "
                "that may be held where it trains: not made"
            )
            return
        sources = [source for source in self._distinct_sources() if not self._decline(source)]
        if not sources:
            return
        needs_visits = cache_config.policy != "lru"
        types = self.profile().types if needs_visits else self._describe_types()
        profile = {name: types[name] for name in types if self._sources[name] in sources}
        room = cache_bytes(cache_config.size, profile)
        plan = plan_cache(profile, cache_config.policy, room)
        for source in sources:
            source.fill(plan)
        for model in self.engine.models:
            model.trainer.on_device = self.rows.on_device
        self.cluster.arrive("filling caches")
        counts = ", ".join(f"{rows:,} {name}" for name, rows in plan.room.items())
        self.say(f"cache: {counts} rows in {format_bytes(plan.used_bytes(profile))} a rank")

    def _decline(self, source: CacheSource) -> bool:
        """Return whether a cache of a source would cost more than it saves; every rank must call
        it."""
        reason = source.why_decline(self.cluster) if self.config.cache.decline else ""
        if reason:
            self.say(f"cache: declined for learnable rows: {reason}")
        return bool(reason)

    def profile(self) -> CacheProfile:
        """Make the rank's profile and save it; every rank must call it.

        Visits are taken from a saved profile if every rank has one. Penalties are always measured.
        """
        profile = self._load()
        if profile is None:
            profile = self._presample()
        # Visits do not depend on the optimiser, but the size of a record does.
        sizes = self._describe_types()
        types = {
            name: replace(type_profile, row_bytes=sizes[name].row_bytes)
            for name, type_profile in profile.types.items()
        }
        profile = replace(profile, types=types)
        profile = replace(profile, types=self._measure_penalties(profile))
        try:
            save_profile(profile, self._file)
        except OSError as error:
            self.say(f"cache: the profile is not kept: {error}")
        return profile

    def _load(self) -> CacheProfile | None:
        """Load this rank's saved profile, if every rank has one."""
        profile = None
        if self._file.exists():
            try:
                profile = load_profile(self._file)
            except GraphError as error:
                self.say(f"cache: sampling anew: {error}")
        ranks_with_one = torch.tensor([int(profile is not None)])
        self.cluster.all_reduce(ranks_with_one, "control", "looking for profiles of visits")
        return profile if int(ranks_with_one) == self.cluster.world else None

    def _presample(self) -> CacheProfile:
        """Count visits by planning the iterations of made-up epochs."""
        config, cluster = self.config, self.cluster
        schedule = make_schedule(self.request)
        counts: dict[str, int] = {}
        for source in self._distinct_sources():
            counts |= source.counts()
        counter = VisitCounter(counts)
        epochs = config.cache.presample_epochs
        self.say(
            f"cache: sampling {epochs * schedule.iterations} iterations ({epochs} epochs) "
            "to count visits"
        )
        turns = range(epochs * schedule.iterations)
        for turn in self._track(turns):
            where = f"counting visits, iteration {turn}"
            if turn % _TOGETHER == 0:
                cluster.arrive(where)
            epoch, iteration = divmod(turn, schedule.iterations)
            nodes = self.engine.engine.plan(schedule.batch(FIRST_EPOCH + epoch, iteration)).reads
            ids_by_table: dict[str, NDArray[np.int64]] = {}
            for source in self._distinct_sources():
                ids_by_table |= source.read(nodes, where)
            counter.add(ids_by_table)
        cluster.arrive("counting visits")
        return CacheProfile(
            profile_key(self.request),
            counter.iterations,
            {
                name: replace(type_profile, **counter.list_visited(name)._asdict())
                for name, type_profile in self._describe_types().items()
            },
        )

    def _track(self, turns: range) -> Iterable[int]:
        """Show a bar of progress on rank 0's terminal."""
        is_shown = self.cluster.rank == 0 and sys.stdout.isatty()
        return track(turns, "counting visits", transient=True) if is_shown else turns

    def _describe_types(self) -> dict[str, TypeProfile]:
        """Return a profile without visits, by node type or table: the facts that need no
        sampling."""
        types: dict[str, TypeProfile] = {}
        for source in self._distinct_sources():
            types |= source.describe_types()
        return types

    def _measure_penalties(self, profile: CacheProfile) -> dict[str, TypeProfile]:
        """Add what a missing byte costs to a profile. All ranks measure at once, as they train."""
        self.cluster.arrive("measuring what a missing row costs")
        types = {}
        for name, type_profile in profile.types.items():
            penalty = miss_penalty(
                partial(self._sources[name].miss, name),
                Visited(type_profile.ids, type_profile.visits),
                profile.iterations,
                type_profile.row_bytes,
            )
            types[name] = replace(type_profile, penalty=penalty)
        return types
