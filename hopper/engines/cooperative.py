"""Cooperative training: the global batch is one computation, and every node's layer is computed
once, by its owner (docs/data-flow.md).

What crosses a link is rows of hidden width or their partial sums, and the gradients of these on the
way back. Input features never travel where they are wider.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numba
import torch
from torch import Tensor

from hopper.config import Config
from hopper.engines.engine import Engine, Plan, TrainState
from hopper.micrograph.route import GlobalBatch
from hopper.partials import Forward, IterationPlan, Planner, choose_wires, make_stack
from hopper.partition.layouts import DividedTopology, Replicated

_Planned = tuple[IterationPlan, dict[str, float]]
"""a plan, on the device that computes, and the seconds and processor seconds that making it took"""
_ROUNDED: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class CooperativePlan(Plan):
    """A rank's part of every layer.

    Attributes
    ----------
    layers: what it computes, sends and receives.
    """

    layers: IterationPlan


@dataclass(frozen=True)
class CooperativeInputs:
    """By type, [n, dim] this rank's input rows; and labels of its roots."""

    rows: dict[str, Tensor]
    labels: Tensor


class Cooperative(Engine[CooperativePlan, CooperativeInputs]):
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
        trainer, graph, reads = state.trainer, state.rows.graph, state.request.reads
        in_dim = reads.inputs[reads.target].width
        self._stack = make_stack(state.packed.module, trainer.sampler, in_dim)
        travels_as = wire_dtype(state.config) or trainer.dtype
        self._wires = choose_wires(self._stack, travels_as, learned=reads.tables)
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

    def plan(self, batch: GlobalBatch) -> CooperativePlan:
        """See :class:`Engine`: made ahead, if this is the batch that was told to be upcoming."""
        state = self.state
        with state.log.stage("sample") as fields:
            layers, fields["planning"] = self._take_plan(batch)
            fields["roots"] = layers.roots
            fields["layers"] = [
                layer.describe(wires)
                for layer, wires in zip(layers.layers, self._wires, strict=True)
            ]
        if self.upcoming is not None:
            self._under_way = self.upcoming, self._planning.submit(self._plan, self.upcoming)
        return CooperativePlan(batch, {name: [ids] for name, ids in layers.nodes.items()}, layers)

    def read(self, plan: CooperativePlan) -> CooperativeInputs:
        """See :class:`Engine`: own rows, and labels of own roots."""
        state, trainer, nodes = self.state, self.state.trainer, plan.layers.nodes
        with state.log.stage("gather", rows=plan.layers.num_nodes, operation="own rows"):
            rows = {
                name: trainer.input_rows_of(state.rows, name, ids)
                for name, ids in nodes.items()
                if ids.size
            }
            roots = nodes[trainer.node_type][: plan.layers.roots]
            labels = trainer.read_rows(state.rows, "labels", roots)
        return CooperativeInputs(rows, trainer.objective.shaped(labels))

    def compute(self, plan: CooperativePlan, inputs: CooperativeInputs) -> None:
        """See :class:`Engine`."""
        state, batch = self.state, plan.batch
        with state.log.stage("compute", roots=plan.layers.roots):
            where = f"epoch {batch.epoch}, iteration {batch.iteration}"
            with state.trainer.products():
                logits = self._forward.logits(plan.layers, inputs.rows, where)
                loss = state.trainer.objective.loss_sum(logits, inputs.labels) / batch.size
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
        plan = self._planner.plan(roots, batch.epoch, batch.iteration)
        plan = plan.to(self.state.cluster.device)
        took = {"seconds": time.perf_counter() - start, "cpu": time.thread_time() - cpu}
        return plan, took


def wire_dtype(config: Config) -> torch.dtype | None:
    """What rows are rounded to on their way; None where they are not."""
    name = config.cooperative.wire
    return None if name == "exact" else _ROUNDED[name]
