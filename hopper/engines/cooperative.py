"""Cooperative training: the global batch is one computation, and every node's layer is computed
once, by its owner (docs/data-flow.md).

What crosses a link is rows of hidden width or their partial sums, and the gradients of these on the
way back. Input features never travel where they are wider.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numba
import torch
from torch import Tensor

from hopper.config import Config
from hopper.engines.engine import Engine, StepReport, TrainState
from hopper.micrograph.route import GlobalBatch
from hopper.partials import Forward, IterationPlan, Planner, choose_wires, make_stack
from hopper.partition.layouts import DividedTopology, Replicated

_Planned = tuple[IterationPlan, dict[str, float]]
"""a plan, on the device that computes, and the seconds and processor seconds that making it took"""
_ROUNDED: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Cooperative(Engine):
    """Each rank computes the nodes it owns, for all ranks.

    Raises
    ------
    RequestError: the model is no stack of layers.
    """

    name = "cooperative"
    layouts = (Replicated, DividedTopology)

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        trainer, graph = state.trainer, state.rows.graph
        in_dim = graph.schema.node_types[trainer.node_type].feature_dim or 0
        self._stack = make_stack(state.packed.module, trainer.sampler, in_dim)
        travels_as = wire_dtype(state.config) or trainer.dtype
        self._wires = choose_wires(self._stack, travels_as, learned=trainer.tables)
        self._forward = Forward(state.cluster, state.log, self._stack, self._wires, travels_as)
        # A channel of its own: plans are made while rows are exchanged.
        self._channel = state.cluster.second_channel()
        placement = graph.placement(state.cluster.ranks_per_server)
        self._planner = Planner(trainer.sampler, placement, self._channel, self._stack, self._wires)
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

    def train_step(self, batch: GlobalBatch) -> StepReport:
        """See :class:`Engine`."""
        state = self.state
        state.packed.clear()
        with state.log.stage("sample") as fields:
            plan, fields["planning"] = self._take_plan(batch)
            fields["roots"] = plan.roots
            fields["layers"] = [
                layer.describe(wires) for layer, wires in zip(plan.layers, self._wires, strict=True)
            ]
        if self.upcoming is not None:
            self._under_way = self.upcoming, self._planning.submit(self._plan, self.upcoming)
        if state.learnable is not None:
            self.fetch_learnable_rows({name: [ids] for name, ids in plan.nodes.items()}, batch)
        with state.log.stage("gather", rows=plan.num_nodes, operation="own rows"):
            inputs, labels = self._read(plan)
        with state.log.stage("compute", roots=plan.roots):
            where = f"epoch {batch.epoch}, iteration {batch.iteration}"
            with state.trainer.products():
                logits = self._forward.logits(plan, inputs, where)
                loss = state.trainer.objective.loss_sum(logits, labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                state.trainer.backward(state.packed, loss)
        return self.synchronise_and_update(batch)

    def close(self) -> None:
        """See :class:`Engine`; every rank has to call it."""
        self._planning.shutdown()
        self._channel.close()

    def _read(self, plan: IterationPlan) -> tuple[dict[str, Tensor], Tensor]:
        """By type, [n, dim] this rank's input rows; and its roots' labels."""
        rows, trainer = self.state.rows, self.state.trainer
        inputs = {
            name: trainer.input_rows_of(rows, name, ids)
            for name, ids in plan.nodes.items()
            if ids.size
        }
        roots = plan.nodes[trainer.node_type][: plan.roots]
        return inputs, trainer.objective.shaped(trainer.read_rows(rows, "labels", roots))

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
        plan = self._planner.plan(roots, batch.epoch, batch.iteration)
        plan = plan.to(self.state.cluster.device)
        took = {"seconds": time.perf_counter() - start, "cpu": time.thread_time() - cpu}
        return plan, took


def wire_dtype(config: Config) -> torch.dtype | None:
    """What rows are rounded to on their way; None where they are not."""
    name = config.cooperative.wire
    return None if name == "exact" else _ROUNDED[name]
