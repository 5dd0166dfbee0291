"""What an epoch of every engine takes on a cluster: bytes by cause, seconds by stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

import numpy as np

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines import Engine, Request, find_engine
from hopper.engines.assemble import make_schedule
from hopper.engines.build import make_engine, make_learnable
from hopper.engines.checks import check_request
from hopper.engines.registry import engines_for
from hopper.errors import ConfigError, RequestError
from hopper.features import PartitionedRows
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.rehearsal.link import Link
from hopper.rehearsal.memory import Held, Memory
from hopper.rehearsal.overlap import Cores, overlapped_seconds
from hopper.rehearsal.world import RehearsedCluster, World
from hopper.run_log import STAGES, RunLog, Stage
from hopper.traffic import CAUSES, Cause
from hopper.train.auto_engine import with_engine
from hopper.train.iteration_cost import PHASES, IterationCost, try_engine
from hopper.train.warm_cache import CacheMaker

_REFUSALS: Final = (RequestError, ConfigError)


@dataclass(frozen=True)
class Machine:
    """Every server of the cluster.

    Attributes
    ----------
    cores: of a rank, on average; less than one is a share of one.
    parallel: the share of a rank's work that its cores divide among them.
    threads: kernels' threads of a rank.
    """

    cores: float
    parallel: float
    threads: int

    @property
    def pace(self) -> float:
        """Seconds that a processor second of one thread takes a rank that has its cores alone."""
        return 1 - self.parallel + self.parallel / self.threads


@dataclass(frozen=True)
class Estimate:
    """One engine.

    Attributes
    ----------
    refused: why it cannot train this; "" where it can, and all that follows is known.
    iterations: of an epoch. rehearsed: those of them that were.
    iteration_seconds: of a whole iteration, the slowest rank's; epoch_seconds: of all.
    phase_seconds: of an iteration, of the slowest rank, each alone: planning, reading, training.
    bytes, stage_seconds: as a run's results have them, of an epoch.
    iteration_bytes, iteration_stage_seconds: of a whole iteration.
    processor_seconds: of a rank's processor in an epoch, the mean of ranks, messages included.
    memory: of the rank that holds most.
    """

    engine: str
    exact: bool
    refused: str = ""
    iterations: int = 0
    rehearsed: int = 0
    iteration_seconds: float = math.nan
    epoch_seconds: float = math.nan
    phase_seconds: dict[str, float] | None = None
    bytes: dict[Cause, int] | None = None
    iteration_bytes: dict[Cause, int] | None = None
    stage_seconds: dict[Stage, float] | None = None
    iteration_stage_seconds: dict[Stage, float] | None = None
    processor_seconds: float = math.nan
    memory: Memory | None = None

    @property
    def total_bytes(self) -> int:
        """Of all causes, in an epoch."""
        return sum((self.bytes or {}).values())


def engines_to_plan(request: Request, names: Sequence[str] = ()) -> list[str]:
    """The engines that are rehearsed: those named; else the one that the configuration names, if it
    is none of Hopper's, and all that train graphs laid out like this one.

    Raises
    ------
    RequestError: there is no such engine; names the option.
    """
    own = [each.name for each in engines_for(request.graph.layout)]
    known = [each.name for each in engines_for(None)]
    for name in names:
        if name not in known and ":" not in name:
            raise RequestError(
                f"--engines: expected some of {', '.join(known)}, or package.module:Class, "
                f"given {name!r:.80}"
            )
    named = request.config.train.engine
    return list(names) or own + [named] * (":" in named)


def estimate_engine(
    name: str, request: Request, world: World, machine: Machine, iterations: int, process: int = 0
) -> Estimate:
    """Rehearse some iterations of an engine.

    Parameters
    ----------
    iterations: how many, at most; the first one is rehearsed once more before them.
    process: bytes that a rank's process holds before it trains.
    """
    own = request.under(with_engine(request.config, name))
    kind = find_engine(own.config).kind
    exact = kind.is_exact(own.config)
    try:
        check_request(own)
        schedule = make_schedule(own)
        chosen = _choose_iterations(schedule, iterations)
        ranks = rehearse(own, world, [schedule.batch(0, each) for each in (chosen[0], *chosen)])
    except _REFUSALS as error:
        return Estimate(name, exact, str(error))
    by_iteration = {
        each: [rank.costs[place] for rank in ranks] for place, each in enumerate(chosen, 1)
    }
    found = _sum_up(name, exact, own.config, machine, world.link, schedule, by_iteration)
    memory = [rank.held.memory(own.config, rank.costs, process) for rank in ranks]
    return replace(found, memory=max(memory, key=lambda each: each.total))


@dataclass(frozen=True)
class RankCosts:
    """One rank's iterations, and what it holds."""

    costs: list[IterationCost]
    held: Held


def rehearse(request: Request, world: World, batches: Sequence[GlobalBatch]) -> list[RankCosts]:
    """By rank, what it spends on some global batches.

    Raises
    ------
    RequestError, ConfigError, ExactnessError: the engine cannot train this.
    """

    def work(cluster: RehearsedCluster, rows: PartitionedRows) -> RankCosts:
        held = Held()
        costs = try_engine(
            *(request, cluster, batches, _maker(cluster, rows, held)),
            busy=cluster.busy,
            settle=cluster.settle if request.config.pipeline.depth else lambda: None,
            watch=held.watch,
        )
        return RankCosts(costs, held)

    return world.run(work)


def _maker(cluster: Cluster, rows: PartitionedRows, held: Held) -> Callable[[Request], Engine]:
    """Makes an engine whose log goes by the rank's clock, its cache filled."""

    def make(request: Request) -> Engine:
        log = RunLog(clock=cluster.clock)
        engine = make_engine(request, cluster, rows, log, make_learnable(request, cluster))
        held.note(engine)
        CacheMaker(engine, lambda _line: None).warm()
        return engine

    return make


def _choose_iterations(schedule: RootSchedule, most: int) -> list[int]:
    """Iterations of an epoch: spread over it, the last one among them if it is a smaller one."""
    count = schedule.iterations
    if count <= most:
        return list(range(count))
    is_short = schedule.count(count - 1, count) < schedule.count(0, 1)
    whole = most - 1 if is_short and most > 1 else most
    found = np.linspace(0, count - 2, whole).round().astype(int).tolist()
    return sorted({*found, *([count - 1] if whole < most else [])})


def _sum_up(
    name: str,
    exact: bool,
    config: Config,
    machine: Machine,
    link: Link,
    schedule: RootSchedule,
    costs: dict[int, list[IterationCost]],
) -> Estimate:
    """Of a few iterations, an epoch's: those that were not rehearsed are the mean of those that are
    as large."""
    seconds = {
        each: iteration_seconds(config, machine, link, ranks) for each, ranks in costs.items()
    }
    stages = {
        stage: {each: fmean(rank.stages[stage] for rank in r) for each, r in costs.items()}
        for stage in STAGES
    }
    sent = {
        cause: {each: float(sum(rank.sent[cause] for rank in r)) for each, r in costs.items()}
        for cause in CAUSES
    }
    phases = {
        phase: fmean(max(rank.phases[phase].seconds for rank in r) for r in costs.values())
        for phase in PHASES
    }
    busy = {
        each: fmean(sum(phase.busy for phase in rank.phases.values()) for rank in r) / machine.pace
        for each, r in costs.items()
    }
    whole, epoch = _scaler(schedule, costs)
    return Estimate(
        engine=name,
        exact=exact,
        iterations=schedule.iterations,
        rehearsed=len(costs),
        iteration_seconds=whole(seconds),
        epoch_seconds=epoch(seconds),
        phase_seconds=phases,
        processor_seconds=epoch(busy),
        bytes={cause: round(epoch(each)) for cause, each in sent.items()},
        iteration_bytes={cause: round(whole(each)) for cause, each in sent.items()},
        stage_seconds={stage: epoch(each) for stage, each in stages.items()},
        iteration_stage_seconds={stage: whole(each) for stage, each in stages.items()},
    )


Means = Callable[[dict[int, float]], float]


def _scaler(schedule: RootSchedule, iterations: Iterable[int]) -> tuple[Means, Means]:
    """From some iterations' values, those of a whole one and of an epoch."""
    count, full = schedule.iterations, schedule.count(0, 1)
    large = [each for each in iterations if schedule.count(each, each + 1) == full]

    def whole(values: dict[int, float]) -> float:
        return fmean(values[each] for each in large)

    def epoch(values: dict[int, float]) -> float:
        others = [values[each] for each in values if each not in large]
        return whole(values) * (count - len(others)) + sum(others)

    return whole, epoch


def iteration_seconds(
    config: Config, machine: Machine, link: Link, ranks: Sequence[IterationCost]
) -> float:
    """Of all ranks' phases, which share their servers' cores; or of all bytes of a server, where
    its link has no time for more. With the pipeline phases of neighbouring iterations lie side by
    side."""
    size = link.ranks_per_server
    overlapped = overlapped_seconds(
        [rank.phases for rank in ranks],
        Cores(machine.cores * size, 1 / machine.pace, size),
        is_pipelined=bool(config.pipeline.depth),
    )
    servers = (ranks[first : first + size] for first in range(0, len(ranks), size))
    most = max(sum(sum(rank.sent.values()) for rank in server) for server in servers)
    return max(overlapped, link.seconds(most))
