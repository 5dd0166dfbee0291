"""Estimates an engine's epoch on a cluster: bytes by cause, seconds by stage, memory."""

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
from hopper.rehearsal.memory import Memory, MemoryMeter
from hopper.rehearsal.overlap import Cores, overlapped_seconds
from hopper.rehearsal.world import RehearsedCluster, World
from hopper.run_log import STAGES, RunLog, Stage
from hopper.traffic import CAUSES, Cause
from hopper.train.iteration_cost import PHASES, IterationCost, try_engine
from hopper.train.tuning import with_engine
from hopper.train.warm_cache import CacheMaker

_REFUSALS: Final = (RequestError, ConfigError)


@dataclass(frozen=True)
class Machine:
    """The processors of a rank, the same on every server.

    Attributes
    ----------
    cores: cores of a rank on average; may be less than 1.
    parallel: share of a rank's work that its cores divide among them.
    threads: kernels' threads of a rank.
    """

    cores: float
    parallel: float
    threads: int

    @property
    def pace(self) -> float:
        """Seconds in which a rank with free cores does the work of one processor second."""
        return 1 - self.parallel + self.parallel / self.threads


@dataclass(frozen=True)
class Estimate:
    """The estimate of one engine.

    Attributes
    ----------
    exact: whether the engine is exact.
    refused: why the engine cannot train this request; "" = it can, and all other fields are known.
    iterations: number of iterations in an epoch.
    rehearsed: how many of them were rehearsed.
    iteration_seconds: the slowest rank's time of an iteration with a full global batch.
    epoch_seconds: time of an epoch.
    phase_seconds: the slowest rank's time of planning, reading and training, each alone.
    bytes, stage_seconds: of an epoch, as a run's results have them.
    iteration_bytes, iteration_stage_seconds: of an iteration with a full global batch.
    processor_seconds: a rank's processor time in an epoch, messages included; the mean of ranks.
    memory: of the rank that needs most.
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
        """The bytes of all causes in an epoch."""
        return sum((self.bytes or {}).values())


def engines_to_plan(request: Request, names: Sequence[str] = ()) -> list[str]:
    """Return the names of the engines to rehearse.

    These are ``names`` if there are any. Otherwise they are all that train graphs of this layout,
    and the plug-in that the configuration names, if it names one.

    Raises
    ------
    RequestError: an engine does not exist; names the option.
    """
    suitable = [engine.name for engine in engines_for(request.graph.layout)]
    engines = [engine.name for engine in engines_for(None)]
    for name in names:
        if name not in engines and ":" not in name:
            raise RequestError(
                f"--engines: expected some of {', '.join(engines)}, or package.module:Class, "
                f"given {name!r:.80}"
            )
    configured = request.config.train.engine
    return list(names) or suitable + [configured] * (":" in configured)


def estimate_engine(
    name: str, request: Request, world: World, machine: Machine, iterations: int, process: int = 0
) -> Estimate:
    """Rehearse some iterations of an engine and estimate its epoch from them.

    Parameters
    ----------
    iterations: most iterations to rehearse. The first is rehearsed once more before, as a warm-up.
    process: bytes that a rank's process holds before it trains.
    """
    engine_request = request.under(with_engine(request.config, name))
    config = engine_request.config
    exact = find_engine(config).kind.is_exact(config)
    try:
        check_request(engine_request)
        schedule = make_schedule(engine_request)
        numbers = _choose_iterations(schedule, iterations)
        batches = [schedule.batch(0, iteration) for iteration in (numbers[0], *numbers)]
        ranks = rehearse(engine_request, world, batches)
    except _REFUSALS as error:
        return Estimate(name, exact, str(error))
    by_iteration = {
        iteration: [rank.costs[index] for rank in ranks]
        for index, iteration in enumerate(numbers, 1)
    }
    estimate = _sum_up(name, exact, config, machine, world.link, schedule, by_iteration)
    memory = [rank.meter.memory(config, rank.costs, process) for rank in ranks]
    return replace(estimate, memory=max(memory, key=lambda of_rank: of_rank.total))


@dataclass(frozen=True)
class RankCosts:
    """The costs of one rank's iterations, and the meter of its memory."""

    costs: list[IterationCost]
    meter: MemoryMeter


def rehearse(request: Request, world: World, batches: Sequence[GlobalBatch]) -> list[RankCosts]:
    """Train some global batches, and return what each rank spends on them.

    Raises
    ------
    RequestError, ConfigError, ExactnessError: the engine cannot train this request.
    """

    def work(cluster: RehearsedCluster, rows: PartitionedRows) -> RankCosts:
        """Try the engine on one rank, and measure the rank's memory."""
        meter = MemoryMeter()
        costs = try_engine(
            *(request, cluster, batches, _engine_factory(cluster, rows, meter)),
            busy=cluster.busy,
            settle=cluster.settle if request.config.pipeline.depth else lambda: None,
            watch=meter.watch,
        )
        return RankCosts(costs, meter)

    return world.run(work)


def _engine_factory(
    cluster: Cluster, rows: PartitionedRows, meter: MemoryMeter
) -> Callable[[Request], Engine]:
    """Return a function that makes an engine with the rank's clock and a filled cache."""

    def make(request: Request) -> Engine:
        """Make the engine, and fill its cache."""
        log = RunLog(clock=cluster.clock)
        engine = make_engine(request, cluster, rows, log, make_learnable(request, cluster))
        meter.count_engine(engine)
        CacheMaker(engine, lambda _line: None).warm()
        return engine

    return make


def _choose_iterations(schedule: RootSchedule, most: int) -> list[int]:
    """Choose iterations evenly from an epoch, with the last one if it has fewer roots."""
    count = schedule.iterations
    if count <= most:
        return list(range(count))
    is_short = schedule.count(count - 1, count) < schedule.count(0, 1)
    full = most - 1 if is_short and most > 1 else most
    numbers = np.linspace(0, count - 2, full).round().astype(int).tolist()
    return sorted({*numbers, *([count - 1] if full < most else [])})


def _sum_up(
    name: str,
    exact: bool,
    config: Config,
    machine: Machine,
    link: Link,
    schedule: RootSchedule,
    costs: dict[int, list[IterationCost]],
) -> Estimate:
    """Estimate an epoch from rehearsed iterations; the others cost as much as those of their size.

    Parameters
    ----------
    costs: by iteration, the costs of all ranks.
    """
    seconds = {
        iteration: iteration_seconds(config, machine, link, ranks)
        for iteration, ranks in costs.items()
    }
    stages = {
        stage: {
            iteration: fmean(rank.stages[stage] for rank in ranks)
            for iteration, ranks in costs.items()
        }
        for stage in STAGES
    }
    sent = {
        cause: {
            iteration: float(sum(rank.sent[cause] for rank in ranks))
            for iteration, ranks in costs.items()
        }
        for cause in CAUSES
    }
    phases = {
        phase: fmean(max(rank.phases[phase].seconds for rank in ranks) for ranks in costs.values())
        for phase in PHASES
    }
    busy = {
        iteration: fmean(sum(phase.busy for phase in rank.phases.values()) for rank in ranks)
        / machine.pace
        for iteration, ranks in costs.items()
    }
    full, epoch = _scaler(schedule, costs)
    return Estimate(
        engine=name,
        exact=exact,
        iterations=schedule.iterations,
        rehearsed=len(costs),
        iteration_seconds=full(seconds),
        epoch_seconds=epoch(seconds),
        phase_seconds=phases,
        processor_seconds=epoch(busy),
        bytes={cause: round(epoch(values)) for cause, values in sent.items()},
        iteration_bytes={cause: round(full(values)) for cause, values in sent.items()},
        stage_seconds={stage: epoch(values) for stage, values in stages.items()},
        iteration_stage_seconds={stage: full(values) for stage, values in stages.items()},
    )


Means = Callable[[dict[int, float]], float]


def _scaler(schedule: RootSchedule, iterations: Iterable[int]) -> tuple[Means, Means]:
    """Return functions from rehearsed iterations' values to those of a full one and of an epoch."""
    count, batch_size = schedule.iterations, schedule.count(0, 1)
    full_iterations = [
        iteration
        for iteration in iterations
        if schedule.count(iteration, iteration + 1) == batch_size
    ]

    def full(values: dict[int, float]) -> float:
        return fmean(values[iteration] for iteration in full_iterations)

    def epoch(values: dict[int, float]) -> float:
        smaller = [values[iteration] for iteration in values if iteration not in full_iterations]
        return full(values) * (count - len(smaller)) + sum(smaller)

    return full, epoch


def iteration_seconds(
    config: Config, machine: Machine, link: Link, ranks: Sequence[IterationCost]
) -> float:
    """Return the time of one iteration, from the costs of all ranks.

    This is the time of the ranks' phases, which share their servers' cores. With the pipeline,
    phases of neighbouring iterations overlap. If a server's link needs longer for all of its bytes,
    it is that time.
    """
    size = link.ranks_per_server
    overlapped = overlapped_seconds(
        [rank.phases for rank in ranks],
        Cores(machine.cores * size, 1 / machine.pace, size),
        is_pipelined=bool(config.pipeline.depth),
    )
    servers = (ranks[first : first + size] for first in range(0, len(ranks), size))
    most = max(sum(sum(rank.sent.values()) for rank in server) for server in servers)
    return max(overlapped, link.seconds(most))
