"""What an iteration of an engine takes: tried on a cluster by ``auto``, rehearsed by
``hopper plan``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from hopper.cluster import Cluster
from hopper.engines import Engine, Request, find_engine
from hopper.micrograph.route import GlobalBatch
from hopper.run_log import Stage
from hopper.traffic import Cause

PHASES: Final = ("plan", "read", "train")
"""what the pipeline does in threads of their own"""


@dataclass(frozen=True)
class Spent:
    """Seconds of a rank's clock, and those of a processor among them."""

    seconds: float
    busy: float


@dataclass(frozen=True)
class IterationCost:
    """One iteration of one rank, its phases one after the other.

    Attributes
    ----------
    phases: by name, of :data:`PHASES`. stages: seconds by stage. sent: bytes by cause.
    roots: of the global batch. plan_bytes: what its plan holds, about.
    """

    phases: dict[str, Spent]
    stages: dict[Stage, float]
    sent: dict[Cause, int]
    roots: int
    plan_bytes: int

    @property
    def seconds(self) -> float:
        """Of all phases."""
        return sum(each.seconds for each in self.phases.values())


def _nothing() -> None:
    """The ranks' clocks go on as they are."""


def try_engine(
    request: Request,
    cluster: Cluster,
    batches: Sequence[GlobalBatch],
    make_engine: Callable[[Request], Engine[Any, Any]],
    *,
    busy: Callable[[], float] = time.process_time,
    settle: Callable[[], None] = _nothing,
    watch: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[IterationCost]:
    """Train some global batches with an engine of its own, which is thrown away; every rank calls
    it.

    Parameters
    ----------
    request: names the engine.
    make_engine: with a model, an optimiser and a log of its own.
    busy: tells a rank's processor seconds.
    settle: called between phases.
    watch: the first iteration is trained within it.

    Raises
    ------
    RequestError, ConfigError, ExactnessError: the engine cannot train this; on every rank.
    ClusterError: a rank or server was lost, or a deadline passed.
    """
    find_engine(request.config).kind.check(request)
    costs = []
    with closing(make_engine(request)) as engine:
        for number, batch in enumerate(batches):
            cluster.arrive(f"trying engine {engine.name}")
            settle()
            cluster.traffic.take()
            watched = nullcontext() if number else watch()
            costs.append(_measure(engine, cluster, batch, busy, settle, watched))
    return costs


def _measure(
    engine: Engine[Any, Any],
    cluster: Cluster,
    batch: GlobalBatch,
    busy: Callable[[], float],
    settle: Callable[[], None],
    watched: AbstractContextManager[object],
) -> IterationCost:
    """One iteration, as :meth:`Engine.train_step` trains it."""
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
    with watched:
        engine.train(plan, inputs)
    mark()
    phases = {
        name: Spent(after[0] - before[0], after[1] - before[1])
        for name, before, after in zip(PHASES, marks[::2], marks[1::2], strict=True)
    }
    sent = cluster.traffic.take()
    return IterationCost(phases, log.take_stage_seconds(), sent, batch.size, nbytes)
