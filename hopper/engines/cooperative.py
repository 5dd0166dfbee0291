"""Cooperative training: the global batch is one computation, and every node's layer is computed
once, by its owner (design.md, "cooperative").

What crosses a link is rows of hidden width or their partial sums, and the gradients of these on the
way back. Input features never travel where they are wider.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
from torch import Tensor

from hopper.config import Config
from hopper.engines.cooperative_passes import HomogeneousPass, Pass, TypedPass, wire_dtype
from hopper.engines.engine import Engine, Plan, TrainState
from hopper.errors import RequestError
from hopper.micrograph.route import GlobalBatch
from hopper.partition.layouts import DividedTopology, Replicated

_Planned = tuple[Any, dict[str, float]]
"""a plan, on the device that computes, and the seconds and processor seconds that making it took"""


@dataclass(frozen=True)
class CooperativePlan(Plan):
    """A rank's part of every layer.

    Attributes
    ----------
    layers: what it computes, sends and receives.
    """

    layers: Any


class Cooperative(Engine[CooperativePlan, tuple[Any, Tensor]]):
    """Each rank computes the nodes it owns, for all ranks.

    Raises
    ------
    RequestError: the model is no stack of layers.
    """

    name = "cooperative"
    layouts = (Replicated, DividedTopology)
    reads_remote_rows = False
    plans_on_host = True

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        # A channel of its own: plans are made while rows are exchanged.
        self._channel = state.cluster.second_channel()
        kind = TypedPass if state.config.model.typed else HomogeneousPass
        try:
            self._pass: Pass = kind(state, self._channel)
        except RequestError:
            self._channel.close()
            raise
        self._planning = ThreadPoolExecutor(
            1,
            thread_name_prefix="planning",
            # numba's number of threads is every thread's own.
            initializer=numba.set_num_threads,
            initargs=(numba.get_num_threads(),),
        )
        self._under_way: tuple[GlobalBatch, Future[_Planned]] | None = None

    @classmethod
    def rounds(cls, config: Config) -> bool:
        """See :class:`Engine`."""
        return super().rounds(config) or wire_dtype(config) is not None

    def plan(self, batch: GlobalBatch) -> CooperativePlan:
        """See :class:`Engine`: made ahead, if this is the batch that was told to be upcoming."""
        state = self.state
        with state.log.stage("sample") as fields:
            layers, fields["planning"] = self._take_plan(batch)
            fields["roots"] = layers.roots
            fields["layers"] = self._pass.describe(layers)
        if self.upcoming is not None:
            self._under_way = self.upcoming, self._planning.submit(self._plan, self.upcoming)
        return CooperativePlan(batch, self._pass.nodes(layers), layers)

    def read(self, plan: CooperativePlan) -> tuple[Any, Tensor]:
        """See :class:`Engine`: own rows, and labels of own roots."""
        rows = sum(int(ids.size) for groups in plan.reads.values() for ids in groups)
        with self.state.log.stage("gather", rows=rows, operation="own rows"):
            return self._pass.read(plan.layers)

    def compute(self, plan: CooperativePlan, inputs: tuple[Any, Tensor]) -> None:
        """See :class:`Engine`."""
        state, batch, (rows, labels) = self.state, plan.batch, inputs
        with state.log.stage("compute", roots=plan.layers.roots):
            where = f"epoch {batch.epoch}, iteration {batch.iteration}"
            with state.trainer.products():
                logits = self._pass.logits(plan.layers, rows, where)
                loss = state.trainer.objective.loss_sum(logits, labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                state.trainer.backward(state.packed, loss)

    def close(self) -> None:
        """See :class:`Engine`; every rank has to call it."""
        self._planning.shutdown()
        self._channel.close()

    def _take_plan(self, batch: GlobalBatch) -> _Planned:
        """The plan of a batch: made ahead, or now; and what making it took."""
        if self._under_way is not None:
            (ahead, future), self._under_way = self._under_way, None
            planned = future.result()
            if (ahead.epoch, ahead.iteration) == (batch.epoch, batch.iteration):
                return planned
        return self._plan(batch)

    def _plan(self, batch: GlobalBatch) -> _Planned:
        start, cpu = time.perf_counter(), time.thread_time()
        roots = batch.homed_at(self.state.cluster.rank)
        plan = self._pass.planner.plan(roots, batch.epoch, batch.iteration)
        plan = plan.to(self.state.cluster.device)
        took = {"seconds": time.perf_counter() - start, "cpu": time.thread_time() - cpu}
        return plan, took
