"""Estimates an engine's epoch on a cluster: bytes by cause, seconds by phase, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from hopper.cluster.traffic import CAUSES, Cause
from hopper.config import change_config
from hopper.engines import Request, TrainStep, find_engine
from hopper.engines.assemble import make_schedule
from hopper.engines.build import make_engine, make_learnable
from hopper.engines.checks import check_request
from hopper.errors import ConfigError, RequestError
from hopper.features import PartitionedRows
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.rehearsal.clock import Link
from hopper.rehearsal.world import ThreadCluster, rehearse
from hopper.timing.run_log import RunLog
from hopper.train.warm_cache import warm_cache

PHASES: Final = ("plan", "read", "train")
"""The phases of an iteration, which the pipeline runs in separate threads."""


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank's memory, without the pages of files that it maps: the process with the maps
    of the graph that it reads; parameters, gradients and the optimiser's state; learnable rows;
    plans and rows of other servers in the pipeline; and what forward saves for backward, with a
    gradient as large as the largest."""

    process: int
    model: int
    learnable: int
    plans: int
    rows: int
    training: int

    @property
    def total(self) -> int:
        """The sum of all."""
        return sum(asdict(self).values())


@dataclass(frozen=True)
class Estimate:
    """The estimate of one engine, or why it refuses the request.

    Seconds and bytes are of an epoch, and of an iteration with a full global batch; those of phases
    are the slowest rank's, each alone. Processor seconds are the mean of ranks, messages included,
    and memory is that of the rank that needs most.
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
    processor_seconds: float = math.nan
    memory: Memory | None = None

    @property
    def total_bytes(self) -> int:
        """The bytes of all causes in an epoch."""
        return sum((self.bytes or {}).values())


@dataclass(frozen=True)
class IterationCost:
    """What an iteration took of one rank: seconds by phase, one after the other, the processor
    seconds among them, bytes sent by cause, and the bytes of its plan."""

    phases: Sequence[float]
    busy: float
    sent: dict[Cause, int]
    plan_bytes: int


def estimate_engine(
    name: str, request: Request, link: Link, cores: float, iterations: int, process: int = 0
) -> Estimate:
    """Rehearse some iterations of an engine and estimate its epoch from them.

    Parameters
    ----------
    cores: cores of every server.
    iterations: most iterations to rehearse. The first is rehearsed once more before, as a warm-up.
    process: bytes that a rank's process holds before it trains.
    """
    request = request.under(change_config(request.config, train={"engine": name}))
    config = request.config
    exact = not find_engine(config).kind.spec.approximations(config)
    try:
        check_request(request)
        schedule = make_schedule(request)
        numbers = _choose_iterations(schedule, iterations)
        batches = [schedule.batch(0, iteration) for iteration in (numbers[0], *numbers)]
        ranks = _rehearse(request, link, batches, process)
    except (RequestError, ConfigError) as error:
        return Estimate(name, exact, str(error))
    costs = list(zip(*(rank_costs[1:] for rank_costs, _ in ranks), strict=True))
    is_pipelined = config.pipeline.depth > 0
    seconds = [iteration_seconds(of, link, cores, is_pipelined=is_pipelined) for of in costs]
    busy = [np.mean([rank.busy for rank in of]) for of in costs]
    sent = [[sum(rank.sent[cause] for rank in of) for cause in CAUSES] for of in costs]
    phases = np.mean([_slowest(of) for of in costs], 0).tolist()
    sizes = [schedule.count(number, number + 1) for number in numbers]
    is_full = np.array(sizes) == schedule.count(0, 1)

    def mean(values: ArrayLike) -> np.ndarray:
        return np.asarray(values, float)[is_full].mean(0)

    def epoch(values: ArrayLike) -> np.ndarray:
        """Return the sum of an epoch, whose other iterations are as the mean of full ones."""
        smaller = np.asarray(values, float)[~is_full]
        return mean(values) * (schedule.iterations - len(smaller)) + smaller.sum(0)

    return Estimate(
        engine=name,
        exact=exact,
        iterations=schedule.iterations,
        rehearsed=len(numbers),
        iteration_seconds=float(mean(seconds)),
        epoch_seconds=float(epoch(seconds)),
        phase_seconds=dict(zip(PHASES, phases, strict=True)),
        bytes=dict(zip(CAUSES, map(round, epoch(sent).tolist()), strict=True)),
        iteration_bytes=dict(zip(CAUSES, map(round, mean(sent).tolist()), strict=True)),
        processor_seconds=float(epoch(busy)),
        memory=max((memory for _, memory in ranks), key=lambda memory: memory.total),
    )


def _choose_iterations(schedule: RootSchedule, most: int) -> list[int]:
    """Choose iterations evenly from an epoch, with the last one if it has fewer roots."""
    count = schedule.iterations
    if count <= most:
        return list(range(count))
    is_short = schedule.count(count - 1, count) < schedule.count(0, 1)
    full = most - 1 if is_short and most > 1 else most
    numbers = np.linspace(0, count - 2, full).round().astype(int).tolist()
    return sorted({*numbers, *([count - 1] if full < most else [])})


def _rehearse(
    request: Request, link: Link, batches: Sequence[GlobalBatch], process: int
) -> list[tuple[list[IterationCost], Memory]]:
    """Train some global batches; return each rank's cost of every batch, and its memory."""

    def work(cluster: ThreadCluster, rows: PartitionedRows) -> tuple[list[IterationCost], Memory]:
        saved: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            """Count the storage of a tensor that is saved for backward."""
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()

        learnable = make_learnable(request, cluster)
        engine = make_engine(request, cluster, rows, RunLog(clock=cluster.clock), learnable)
        with closing(engine):
            model = sum(
                tensor.nbytes
                for state in engine.models
                for tensor in (state.packed.buffer, *state.optimizer.state().values())
            )
            warm_cache(engine, lambda _line: None)
            hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
            costs = [
                _measure_iteration(engine, cluster, batch, nullcontext() if number else hooks)
                for number, batch in enumerate(batches)
            ]
        stored = sum(share.records.stored.nbytes for share in engine.state.learnable)
        training = sum(saved.values()) + max(saved.values(), default=0)
        waiting = _count_waiting(request, costs)
        return costs, Memory(process, model, stored, *waiting, training)

    return rehearse(request, work, link)


def _count_waiting(request: Request, costs: Sequence[IterationCost]) -> tuple[int, int]:
    """Return the bytes of plans and of rows that are in a rank's pipeline at most."""
    pipeline = request.config.pipeline
    plan = max(cost.plan_bytes for cost in costs)
    rows = max(cost.sent["feature"] for cost in costs)
    if not pipeline.depth:
        return plan, rows
    # Besides the waiting iterations one is being read, and one is trained.
    read = min(pipeline.reads * rows, pipeline.nbytes + rows) + 2 * rows
    return min(pipeline.depth * plan, pipeline.nbytes + plan), read


def _measure_iteration(
    engine: TrainStep[Any, Any],
    cluster: ThreadCluster,
    batch: GlobalBatch,
    hooks: AbstractContextManager[object],
) -> IterationCost:
    """Train one global batch within hooks, as a run without a pipeline does."""
    clock, rows, phases = cluster.rank_clock, engine.state.rows, list[float]()
    assert clock is not None
    busy = 0.0

    @contextmanager
    def phase() -> Iterator[None]:
        """Measure a phase, which begins when every rank has ended the one before."""
        nonlocal busy
        # No message of a run, so it is not counted.
        cluster.messages.all_reduce(torch.zeros(1)).wait(timedelta(seconds=cluster.timeout))
        seconds, busy_before = clock.read(), clock.busy()
        yield
        phases.append(clock.read() - seconds)
        busy += clock.busy() - busy_before

    cluster.arrive(f"trying engine {engine.name}")
    cluster.traffic.take()
    with phase():
        plan = engine.plan_and_ask(batch)
    nbytes = plan.nbytes
    with phase(), rows.one_operation():
        inputs = engine.read(plan, rows)
    with phase(), hooks:
        engine.train(plan, inputs)
    return IterationCost(phases, busy, cluster.traffic.take(), nbytes)


def iteration_seconds(
    ranks: Sequence[IterationCost], link: Link, cores: float, *, is_pipelined: bool
) -> float:
    """Return the time of one iteration, from the costs of all ranks.

    This is the longest phase of the slowest rank with the pipeline, and the sum of phases without.
    It is more if a server's cores or its link need longer for all that its ranks do.
    """
    size, phases = link.ranks_per_server, _slowest(ranks)
    servers = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    busy = max(sum(rank.busy for rank in server) for server in servers)
    sent = max(sum(sum(rank.sent.values()) for rank in server) for server in servers)
    alone = max(phases) if is_pipelined else sum(phases)
    return max(alone, busy / cores, link.seconds(sent))


def _slowest(ranks: Sequence[IterationCost]) -> list[float]:
    """Return the slowest rank's seconds of each phase."""
    return [max(seconds) for seconds in zip(*(rank.phases for rank in ranks), strict=True)]
