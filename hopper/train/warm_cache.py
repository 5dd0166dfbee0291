"""A rank's cache: profiled, planned and filled before the first iteration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
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
from hopper.engines import AUTO, Request, engines_of, fetching_engines, is_fetching
from hopper.engines.assemble import make_schedule
from hopper.engines.engine import Engine
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
    cached_features,
    cached_tables,
)

_TOGETHER: Final = 16
"""iterations between two moments at which presampling ranks wait for each other"""


def check_profile(request: Request) -> None:
    """Refuse to profile what reads neither rows of other servers nor records that are stored apart.

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
    if cached_tables(request) or (config.cache.memory == "device" and cached_features(request)):
        return
    if not is_fetching(request):
        raise RequestError(
            f"train.engine: expected one that reads rows of other servers "
            f'({fetching_engines()}), or learnable.storage = "host" or "mmap" of a graph with '
            f"learnable rows; given {config.train.engine}"
        )
    if graph.book.servers == 1:
        raise RequestError(f"data.partitioned: {graph.path} has one server, so no row is remote")


def made_for(request: Request) -> dict[str, Any]:
    """All that visits depend on besides the partition."""
    config = request.config
    train, model = config.train, config.model
    (engine,) = engines_of(request)
    placement = request.graph.placement(config.cluster.ranks_per_server)
    return {
        "plan": engine.plan_key(config),
        "types": cached_features(request),
        "memory": config.cache.memory,
        "tables": [placement.dealing.name, *cached_tables(request)],
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
    """Makes the cache of a rank, of what its engine's plans say that it reads.

    say: prints a line, on rank 0.
    """

    engine: Engine
    say: Callable[[str], None]

    @property
    def request(self) -> Request:
        """What is trained."""
        return self.engine.state.request

    @property
    def config(self) -> Config:
        """The run's."""
        return self.request.config

    @property
    def cluster(self) -> Cluster:
        """The ranks."""
        return self.engine.state.cluster

    @property
    def rows(self) -> PartitionedRows:
        """What the rank reads from."""
        return self.engine.state.rows

    @property
    def _file(self) -> Path:
        path = self.request.graph.path
        return profile_file(path, made_for(self.request), self.cluster.rank)

    @cached_property
    def _sources(self) -> dict[str, CacheSource]:
        """By node type or table, in an order that is the same on every rank."""
        config = self.config
        found: dict[str, CacheSource] = {}
        features = cached_features(self.request)
        stored_as = self.request.reads.types
        if features and config.cache.memory == "device":
            device, fetching = self.cluster.device, is_fetching(self.request)
            own: Features = DeviceFeatures(
                features, self.rows, stored_as, device, fetching=fetching
            )
            found |= dict.fromkeys(features, own)
        elif features and self.rows.remote is not None:
            found |= dict.fromkeys(features, RemoteFeatures(features, self.rows, stored_as))
        tables = cached_tables(self.request)
        if tables:
            kind = RecordsOnDisk if config.learnable.storage == "mmap" else StoredRecords
            found |= dict.fromkeys(tables, kind(self.engine.state.learnable))
        return found

    def _each_source(self) -> list[CacheSource]:
        return list(dict.fromkeys(self._sources.values()))

    def warm(self) -> None:
        """Let rows be looked for in a cache first, as the configuration says; collective."""
        own = self.config.cache
        if own.policy == "none":
            return
        if not self._sources:
            self.say(
                f"cache: {self.config.train.engine} reads no rows of other servers here, and none "
                "that may be held where it trains: not made"
            )
            return
        sources = [each for each in self._each_source() if not self._decline(each)]
        if not sources:
            return
        known = self._known() if own.policy == "lru" else self.profile().types
        profile = {each: known[each] for each in known if self._sources[each] in sources}
        plan = plan_cache(profile, own.policy, cache_bytes(own.size, profile))
        for source in sources:
            source.fill(plan)
        for model in self.engine.models:
            model.trainer.on_device = self.rows.on_device
        self.cluster.arrive("filling caches")
        self.say(
            f"cache: {_told(plan.room)} rows in {format_bytes(plan.used_bytes(profile))} a rank"
        )

    def _decline(self, source: CacheSource) -> bool:
        """Whether to hold nothing of a source, since that would cost more than it saves;
        collective."""
        reason = source.why_decline(self.cluster) if self.config.cache.decline else ""
        if reason:
            self.say(f"cache: declined for learnable rows: {reason}")
        return bool(reason)

    def profile(self) -> CacheProfile:
        """The rank's profile: a saved one's visits where every rank has one, with penalties as they
        are now; collective."""
        found = self._load()
        if found is None:
            found = self._presample()
        # How wide a record is depends on the optimiser too, and visits do not.
        sizes = self._known()
        types = {
            each: replace(known, row_bytes=sizes[each].row_bytes)
            for each, known in found.types.items()
        }
        found = replace(found, types=types)
        found = replace(found, types=self._measured(found))
        try:
            save_profile(found, self._file)
        except OSError as error:
            self.say(f"cache: the profile is not kept: {error}")
        return found

    def _load(self) -> CacheProfile | None:
        found = None
        if self._file.exists():
            try:
                found = load_profile(self._file)
            except GraphError as error:
                self.say(f"cache: sampling anew: {error}")
        everyone = torch.tensor([int(found is not None)])
        self.cluster.all_reduce(everyone, "control", "looking for profiles of visits")
        return found if int(everyone) == self.cluster.world else None

    def _presample(self) -> CacheProfile:
        config, cluster = self.config, self.cluster
        schedule = make_schedule(self.request)
        counts: dict[str, int] = {}
        for source in self._each_source():
            counts |= source.counts()
        counter = VisitCounter(counts)
        epochs = config.cache.presample_epochs
        self.say(
            f"cache: sampling {epochs * schedule.iterations} iterations ({epochs} epochs) "
            "to count visits"
        )
        turns = range(epochs * schedule.iterations)
        for turn in self._shown(turns):
            where = f"counting visits, iteration {turn}"
            if turn % _TOGETHER == 0:
                cluster.arrive(where)
            epoch, iteration = divmod(turn, schedule.iterations)
            nodes = self.engine.plan(schedule.batch(FIRST_EPOCH + epoch, iteration)).reads
            read: dict[str, NDArray[np.int64]] = {}
            for source in self._each_source():
                read |= source.read(nodes, where)
            counter.add(read)
        cluster.arrive("counting visits")
        return CacheProfile(
            made_for(self.request),
            counter.iterations,
            {
                each: replace(known, **counter.list_visited(each)._asdict())
                for each, known in self._known().items()
            },
        )

    def _shown(self, turns: range) -> Iterable[int]:
        is_seen = self.cluster.rank == 0 and sys.stdout.isatty()
        return track(turns, "counting visits", transient=True) if is_seen else turns

    def _known(self) -> dict[str, TypeProfile]:
        """What is known without sampling."""
        known: dict[str, TypeProfile] = {}
        for source in self._each_source():
            known |= source.known()
        return known

    def _measured(self, profile: CacheProfile) -> dict[str, TypeProfile]:
        """The same with what a missing byte costs now. Ranks measure at once, as they train."""
        self.cluster.arrive("measuring what a missing row costs")
        found = {}
        for each, known in profile.types.items():
            penalty = miss_penalty(
                partial(self._sources[each].miss, each),
                Visited(known.ids, known.visits),
                profile.iterations,
                known.row_bytes,
            )
            found[each] = replace(known, penalty=penalty)
        return found


def _told(room: Mapping[str, int]) -> str:
    return ", ".join(f"{rows:,} {each}" for each, rows in room.items())
