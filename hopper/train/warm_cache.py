"""Making a rank's cache before the first iteration: profiling, planning and filling it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track

from cache_server.available_memory import available_memory
from hopper.cluster.cluster import Cluster
from hopper.engines import AUTO, Request, TrainStep, engines_of, fetching_engines, is_fetching
from hopper.engines.assemble import make_schedule
from hopper.errors import GraphError, RequestError
from hopper.features.cache_plan import CachePlan, TypeProfile, cache_bytes, plan_cache
from hopper.features.cached_features import CachedFeatures
from hopper.features.source import distinct
from hopper.graph.topology import Ids
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file, save_profile
from hopper.hetero.learnable import LearnableRows
from hopper.hetero.presample import FIRST_EPOCH, VisitCounter, Visited, miss_penalty
from hopper.partition.memory import format_bytes

Say = Callable[[str], None]
"""prints a line on rank 0"""

_TOGETHER: Final = 16
"""Number of iterations after which presampling ranks wait for each other."""
_SHARE_OF_FREE_MEMORY: Final = 0.5
"""The share that records may take. Batches, models and mapped features need the rest."""
_NOTHING: Final = np.empty(0, np.int64)


def list_cacheable_features(request: Request) -> list[str]:
    """Return the node types whose features may be cached, in order of name: all that the model
    reads in device memory, those of other servers in host memory."""
    if is_fetching(request) or request.config.cache.memory == "device":
        return request.reads.featured
    return []


def list_cacheable_tables(request: Request) -> list[str]:
    """Return the tables of learnable rows that are not stored in the model's memory, in order of
    name."""
    is_apart = request.config.learnable.storage != "memory"
    return sorted(set(request.reads.tables.values())) if is_apart else []


def check_profile(request: Request) -> None:
    """Refuse to profile a run that has nothing to cache."""
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


def warm_cache(engine: TrainStep[Any, Any], say: Say) -> None:
    """Make the cache that the configuration asks for, for the rows that an engine's plans read;
    every rank must call it."""
    state = engine.state
    config, cluster = state.config, state.cluster
    if config.cache.policy == "none":
        return
    sources = _list_sources(engine)
    if not sources:
        say(
            f"cache: {config.train.engine} reads no rows of other servers here, and none "
            "that may be held where it trains: not made"
        )
        return
    cached = []
    for source in sources:
        reason = ""
        if isinstance(source, CachedRecords) and config.cache.decline:
            reason = source.why_decline(cluster)
        if reason:
            say(f"cache: declined for learnable rows: {reason}")
        else:
            cached.append(source)
    if not cached:
        return
    needs_visits = config.cache.policy != "lru"
    types = make_profile(engine, say).types if needs_visits else _describe(sources)
    profile = {name: types[name] for name in types if any(name in s.names for s in cached)}
    plan = plan_cache(profile, config.cache.policy, cache_bytes(config.cache.size, profile))
    for source in cached:
        source.fill(plan)
    for model in engine.models:
        model.trainer.on_device = state.rows.on_device
    cluster.arrive("filling caches")
    counts = ", ".join(f"{rows:,} {name}" for name, rows in plan.room.items())
    say(f"cache: {counts} rows in {format_bytes(plan.used_bytes(profile))} a rank")


def make_profile(engine: TrainStep[Any, Any], say: Say) -> CacheProfile:
    """Make the rank's profile and save it; every rank must call it. Visits are taken from saved
    profiles if every rank has one, and penalties are always measured."""
    request, cluster = engine.state.request, engine.state.cluster
    file = profile_file(request.graph.path, profile_key(request), cluster.rank)
    sources = _list_sources(engine)
    described = _describe(sources)
    profile = _load(file, cluster, say) or _presample(engine, sources, described, say)
    cluster.arrive("measuring what a missing row costs")
    types = {}
    for name, visited in profile.types.items():
        # Visits do not depend on the optimiser, but the size of a record does.
        row_bytes = described[name].row_bytes
        (source,) = (source for source in sources if name in source.names)
        is_own, penalty = source.is_own(name, visited.ids), np.zeros(visited.ids.size)
        # All ranks measure at once, as they train.
        for chosen in (is_own, ~is_own):
            rows = Visited(visited.ids[chosen], visited.visits[chosen])
            miss = partial(source.miss, name)
            penalty[chosen] = miss_penalty(miss, rows, profile.iterations, row_bytes)
        types[name] = replace(visited, row_bytes=row_bytes, penalty=penalty)
    profile = replace(profile, types=types)
    try:
        save_profile(profile, file)
    except OSError as error:
        say(f"cache: the profile is not kept: {error}")
    return profile


def _load(file: Path, cluster: Cluster, say: Say) -> CacheProfile | None:
    """Load this rank's saved profile, if every rank has one."""
    profile = None
    if file.exists():
        try:
            profile = load_profile(file)
        except GraphError as error:
            say(f"cache: sampling anew: {error}")
    ranks_with_one = torch.tensor([int(profile is not None)])
    cluster.all_reduce(ranks_with_one, "control", "looking for profiles of visits")
    return profile if int(ranks_with_one) == cluster.world else None


def _presample(
    engine: TrainStep[Any, Any],
    sources: Sequence[CachedFeatures | CachedRecords],
    described: Mapping[str, TypeProfile],
    say: Say,
) -> CacheProfile:
    """Count visits by planning the iterations of made-up epochs."""
    request, cluster = engine.state.request, engine.state.cluster
    schedule, epochs = make_schedule(request), request.config.cache.presample_epochs
    counts = {name: source.count(name) for source in sources for name in source.names}
    counter = VisitCounter(counts)
    turns = range(epochs * schedule.iterations)
    say(f"cache: sampling {len(turns)} iterations ({epochs} epochs) to count visits")
    is_shown = cluster.rank == 0 and sys.stdout.isatty()
    for turn in track(turns, "counting visits", transient=True) if is_shown else turns:
        where = f"counting visits, iteration {turn}"
        if turn % _TOGETHER == 0:
            cluster.arrive(where)
        epoch, iteration = divmod(turn, schedule.iterations)
        nodes = engine.engine.plan(schedule.batch(FIRST_EPOCH + epoch, iteration)).reads
        visited: dict[str, Ids] = {}
        for source in sources:
            visited |= source.read(nodes, where)
        counter.add(visited)
    cluster.arrive("counting visits")
    types = {
        name: replace(facts, **counter.list_visited(name)._asdict())
        for name, facts in described.items()
    }
    return CacheProfile(profile_key(request), counter.iterations, types)


def _list_sources(engine: TrainStep[Any, Any]) -> list[CachedFeatures | CachedRecords]:
    """Return what a cache may hold, in the same order on every rank."""
    state, sources = engine.state, list[CachedFeatures | CachedRecords]()
    request, rows, settings = state.request, state.rows, state.config.cache
    features, stored_as = list_cacheable_features(request), request.reads.types
    device = state.cluster.device if settings.memory == "device" else None
    if features and (device is not None or rows.remote is not None):
        all_rows = is_fetching(request)
        sources.append(CachedFeatures(features, rows, stored_as, device, all_rows=all_rows))
    if list_cacheable_tables(request):
        is_on_disk = state.config.learnable.storage == "mmap"
        sources.append(CachedRecords(state.learnable, is_on_disk=is_on_disk))
    return sources


def _describe(sources: Sequence[CachedFeatures | CachedRecords]) -> dict[str, TypeProfile]:
    """Return a profile without visits, by node type or table: the facts that need no sampling."""
    return {name: source.describe(name) for source in sources for name in source.names}


class CachedRecords:
    """Learnable rows that this rank owns and their optimiser state, by number, for a cache in the
    model's memory; it has the methods of :class:`CachedFeatures`."""

    def __init__(self, learnable: LearnableRows, *, is_on_disk: bool) -> None:
        self.names = [share.name for share in learnable]
        self._learnable, self._is_on_disk = learnable, is_on_disk

    def why_decline(self, cluster: Cluster) -> str:
        """Say why a cache costs more than it saves, "" = it does not; collective. In host memory a
        CPU updates records in place. Files that fit in memory are kept there by the kernel."""
        if not self._is_on_disk:
            is_host = cluster.device.type == "cpu"
            return "the model is in host memory as they are" if is_host else ""
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

    def describe(self, name: str) -> TypeProfile:
        """Describe the records of a table."""
        record_bytes = self._learnable[name].records.record_bytes
        return TypeProfile(record_bytes, self.count(name), _NOTHING, _NOTHING)

    def count(self, name: str) -> int:
        """Return the number of rows of a table that this rank owns."""
        return len(self._learnable[name].records.stored)

    def is_own(self, name: str, ids: Ids) -> NDArray[np.bool_]:
        """Return which rows are this rank's own, which all are."""
        return np.ones(ids.size, np.bool_)

    def read(self, nodes: Mapping[str, Sequence[Ids]], where: str) -> dict[str, Ids]:
        """Find the own rows that any rank asks for in an iteration; every rank must call it."""
        asked = self._learnable.ask(nodes, where)
        return {routes.share.name: distinct(routes.asked) for routes in asked}

    def miss(self, name: str, ids: Ids) -> None:
        """Read the records and write them back, as an update does, to the disk if they are on one:
        else the time would depend on what the page cache holds."""
        share, places = self._learnable[name], torch.from_numpy(ids)
        share.records.write(places, share.records.read(places))
        if self._is_on_disk:
            share.write_out()

    def fill(self, plan: CachePlan) -> None:
        """Make the cache that a plan describes."""
        for share in self._learnable:
            places = None if plan.policy == "lru" else plan.held[share.name]
            share.hold(plan.room[share.name], places)
