"""Measuring an iteration of an engine, for ``train.engine = "auto"`` and for ``hopper plan``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from hopper.cluster import Cluster
from hopper.engines import Request, TrainStep, find_engine
from hopper.micrograph.route import GlobalBatch
from hopper.run_log import Stage
from hopper.traffic import Cause

PHASES: Final = ("plan", "read", "train")
"""The phases of an iteration, which the pipeline runs in separate threads."""


@dataclass(frozen=True)
class Spent:
    """The time that a phase took.

    Attributes
    ----------
    seconds: seconds on the rank's clock.
    busy: processor seconds among them.
    """

    seconds: float
    busy: float


@dataclass(frozen=True)
class IterationCost:
    """The cost of one iteration for one rank, with its phases run one after the other.

    Attributes
    ----------
    phases: time by phase, of :data:`PHASES`.
    stages: seconds by stage.
    sent: bytes sent, by cause.
    roots: number of roots of the global batch.
    plan_bytes: approximate size of the plan.
    """

    phases: dict[str, Spent]
    stages: dict[Stage, float]
    sent: dict[Cause, int]
    roots: int
    plan_bytes: int

    @property
    def seconds(self) -> float:
        """Seconds of all phases together."""
        return sum(spent.seconds for spent in self.phases.values())


def _do_nothing() -> None:
    """Do nothing between phases: real clocks need no settling."""


def try_engine(
    request: Request,
    cluster: Cluster,
    batches: Sequence[GlobalBatch],
    make_engine: Callable[[Request], TrainStep[Any, Any]],
    *,
    busy: Callable[[], float] = time.process_time,
    settle: Callable[[], None] = _do_nothing,
    watch: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[IterationCost]:
    """Train some global batches with a new engine, and discard it; every rank must call it.

    Parameters
    ----------
    request: the request, which names the engine.
    make_engine: makes an engine with a model, an optimiser and a log of its own.
    busy: returns a rank's processor seconds.
    settle: called between phases.
    watch: a context around the training of the first iteration.

    Returns
    -------
    The cost of each batch.

    Raises
    ------
    RequestError, ConfigError, ExactnessError: the engine cannot train this; raised on every rank.
    ClusterError: a rank or server was lost, or a deadline passed.
    """
    find_engine(request.config).kind.check(request)
    costs = []
    with closing(make_engine(request)) as engine:
        for number, batch in enumerate(batches):
            watched = nullcontext() if number else watch()
            costs.append(measure_iteration(engine, cluster, batch, busy, settle, watched))
    return costs


def measure_iteration(
    engine: TrainStep[Any, Any],
    cluster: Cluster,
    batch: GlobalBatch,
    busy: Callable[[], float] = time.process_time,
    settle: Callable[[], None] = _do_nothing,
    watched: AbstractContextManager[object] | None = None,
) -> IterationCost:
    """Train one global batch, as :meth:`TrainStep.train_step` does, once every rank has come.

    Parameters
    ----------
    busy, settle: as of :func:`try_engine`.
    watched: the model is trained within it.

    Raises
    ------
    ClusterError: a rank or server was lost, or a deadline passed.
    """
    cluster.arrive(f"trying engine {engine.name}")
    settle()
    cluster.traffic.take()
    rows, log = engine.state.rows, engine.state.log
    marks = []

    def mark() -> None:
        marks.append((cluster.clock(), busy()))

    log.take_stage_seconds()
    mark()
    plan = engine.plan_and_ask(batch)
    nbytes = plan.nbytes
    mark()
    settle()
    mark()
    with rows.one_operation():
        inputs = engine.read(plan, rows)
    mark()
    settle()
    mark()
    with watched or nullcontext():
        engine.train(plan, inputs)
    mark()
    phases = {
        name: Spent(after[0] - before[0], after[1] - before[1])
        for name, before, after in zip(PHASES, marks[::2], marks[1::2], strict=True)
    }
    sent = cluster.traffic.take()
    return IterationCost(phases, log.take_stage_seconds(), sent, batch.size, nbytes)
