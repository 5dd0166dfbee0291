"""A rank's cache of remote rows: profiled, planned and filled before the first iteration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.accumulate import GroupTrainer
from hopper.engines.assemble import FETCHING_ENGINES, make_group_trainer, make_schedule
from hopper.engines.typed_reads import typed_inputs
from hopper.errors import GraphError, RequestError
from hopper.features import PartitionedRows
from hopper.graph.schema import GraphSchema
from hopper.hetero.cache_plan import Policy, Profile, TypeProfile, cache_bytes, plan_cache
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file, save_profile
from hopper.hetero.learnable import distinct
from hopper.hetero.presample import FIRST_EPOCH, VisitCounter, Visited, miss_penalty
from hopper.hetero.row_cache import RecentRows, RowCache
from hopper.micrograph.route import GlobalBatch
from hopper.partition import PartitionedGraph
from hopper.partition.memory import format_bytes
from hopper.run_log import RunLog

_HOMED: Final = ("hop", "zero_hop")
_ROWS_AT_ONCE: Final = 1 << 16
_TOGETHER: Final = 16
"""iterations between two moments at which presampling ranks wait for each other"""


def check_profile(config: Config, graph: PartitionedGraph) -> None:
    """Refuse to profile what reads no rows of other servers.

    Raises
    ------
    RequestError: names the key, what was expected and what was given.
    """
    if config.train.engine not in FETCHING_ENGINES:
        raise RequestError(
            f"train.engine: expected one that reads rows of other servers "
            f"({', '.join(FETCHING_ENGINES)}), given {config.train.engine}"
        )
    if graph.book.servers == 1:
        raise RequestError(f"data.partitioned: {graph.path} has one server, so no row is remote")


def cached_types(config: Config, schema: GraphSchema) -> list[str]:
    """The node types whose features the model reads, in order of name."""
    if not config.model.typed:
        return [schema.target_type()]
    return sorted(
        each for each in typed_inputs(config, schema) if schema.node_types[each].feature_dim
    )


def made_for(config: Config, schema: GraphSchema, ranks: int) -> dict[str, Any]:
    """All that visits depend on besides the partition."""
    train, model = config.train, config.model
    return {
        "types": cached_types(config, schema),
        "layers": model.layers,
        "metapaths": model.metapaths,
        "sampler": config.sampler.model_dump(),
        "roots": "homed" if train.engine in _HOMED else train.engine,
        "batch_size": train.batch_size,
        "last_batch": train.last_batch,
        "iterations_per_epoch": train.iterations_per_epoch,
        "seed": train.seed,
        "ranks": ranks,
        "epochs": config.cache.presample_epochs,
    }


@dataclass(frozen=True)
class CacheMaker:
    """Makes a rank's cache.

    say: prints a line, on rank 0.
    """

    config: Config
    graph: PartitionedGraph
    cluster: Cluster
    rows: PartitionedRows
    say: Callable[[str], None]

    @property
    def _file(self) -> Path:
        key = made_for(self.config, self.graph.schema, self.cluster.world)
        return profile_file(self.graph.path, key, self.cluster.rank)

    def warm(self) -> None:
        """Let remote rows be looked for in a cache, as the configuration says; collective."""
        own = self.config.cache
        if own.policy == "none":
            return
        if self.config.train.engine not in FETCHING_ENGINES:
            self.say(f"cache: {self.config.train.engine} reads no rows of other servers: not made")
            return
        if self.rows.remote is None:
            self.say("cache: a single server has all rows: not made")
            return
        profile = self._empty() if own.policy == "lru" else self.profile().types
        self._fill(profile, own.policy, cache_bytes(own.size, profile))

    def profile(self) -> CacheProfile:
        """The rank's profile: a saved one's visits where every rank has one, with penalties as they
        are now; collective."""
        found = self._load()
        if found is None:
            found = self._presample()
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
        config, graph, cluster = self.config, self.graph, self.cluster
        passes = config.train.roots_a_pass
        trainer = make_group_trainer(
            config, graph, RunLog(None), passes, cluster.device, cluster.server
        )
        schedule = make_schedule(config, graph, cluster.world)
        types = cached_types(config, graph.schema)
        counter = VisitCounter({each: graph.book.total(each) for each in types})
        epochs = config.cache.presample_epochs
        self.say(
            f"cache: sampling {epochs * schedule.iterations} iterations ({epochs} epochs) "
            "to count visits"
        )
        turns = range(epochs * schedule.iterations)
        for turn in self._shown(turns):
            if turn % _TOGETHER == 0:
                cluster.arrive(f"counting visits, iteration {turn}")
            epoch, iteration = divmod(turn, schedule.iterations)
            batch = schedule.batch(FIRST_EPOCH + epoch, iteration)
            counter.add(self._read(trainer, batch, types))
        cluster.arrive("counting visits")
        return CacheProfile(
            made_for(config, graph.schema, cluster.world),
            counter.iterations,
            {
                each: replace(known, **counter.visited(each)._asdict())
                for each, known in self._empty().items()
            },
        )

    def _shown(self, turns: range) -> Iterable[int]:
        is_seen = self.cluster.rank == 0 and sys.stdout.isatty()
        return track(turns, "counting visits", transient=True) if is_seen else turns

    def _read(
        self, trainer: GroupTrainer, batch: GlobalBatch, types: list[str]
    ) -> dict[str, NDArray[np.int64]]:
        """By type, the rows of other servers that this rank reads in an iteration."""
        rank = self.cluster.rank
        is_homed = self.config.train.engine in _HOMED
        roots = batch.homed_at(rank) if is_homed else batch.of_model(rank)
        read: dict[str, list[NDArray[np.int64]]] = {each: [] for each in types}
        for subgraph in trainer.sample(roots, batch.epoch, batch.iteration):
            for name, ids in subgraph.nodes.items():
                stored = trainer.sampler.stored_as.get(name, name)
                if stored in read:
                    read[stored].append(ids[~self.rows.is_local(stored, ids)])
        return {each: distinct(groups) for each, groups in read.items()}

    def _empty(self) -> dict[str, TypeProfile]:
        """What is known without sampling."""
        graph, nothing = self.graph, np.empty(0, np.int64)
        found = {}
        for each in cached_types(self.config, graph.schema):
            kind = graph.schema.node_types[each]
            assert kind.feature_dim is not None
            row_bytes = kind.feature_dim * np.dtype(kind.feature_dtype).itemsize
            away = graph.book.total(each) - graph.stored(each, self.cluster.server).count
            found[each] = TypeProfile(row_bytes, away, nothing, nothing)
        return found

    def _measured(self, profile: CacheProfile) -> dict[str, TypeProfile]:
        """The same with what a missing byte costs now. Ranks measure at once, as they train."""
        remote = self.rows.remote
        assert remote is not None
        self.cluster.arrive("measuring what a missing row costs")
        found = {}
        for each, known in profile.types.items():

            def fetch(ids: NDArray[np.int64], node_type: str = each) -> object:
                return remote.gather("features", node_type, ids)

            penalty = miss_penalty(
                fetch, Visited(known.ids, known.visits), profile.iterations, known.row_bytes
            )
            found[each] = replace(known, penalty=penalty)
        return found

    def _fill(self, profile: Profile, policy: Policy, size: int) -> None:
        graph, remote = self.graph, self.rows.remote
        assert remote is not None
        plan = plan_cache(profile, policy, size)
        kind = RecentRows if policy == "lru" else RowCache
        held: dict[str, RowCache] = {}
        for each, room in plan.room.items():
            own = graph.schema.node_types[each]
            assert own.feature_dim is not None
            held[each] = kind(graph.book.total(each), room, own.feature_dim, own.feature_dtype)
            wanted = np.sort(plan.held[each])
            for first in range(0, wanted.size, _ROWS_AT_ONCE):
                ids = wanted[first : first + _ROWS_AT_ONCE]
                held[each].put(ids, remote.gather("features", each, ids))
        self.rows.keep(held)
        self.cluster.arrive("filling caches")
        self.say(f"cache: {_told(plan.room)} rows in {format_bytes(plan.used(profile))} a rank")


def _told(room: Mapping[str, int]) -> str:
    return ", ".join(f"{rows:,} {each}" for each, rows in room.items())
