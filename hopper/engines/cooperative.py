"""Cooperative training: the global batch is one computation, and every node's layer is computed
once, by its owner (design.md, "cooperative").

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
from hopper.models import GNN
from hopper.models.layer import SumLayer
from hopper.partials import IterationPlan, LayerPlan, Planner, RowExchange, choose_wires

_Planned = tuple[IterationPlan, dict[str, float]]
"""a plan, and the seconds and processor seconds that making it took"""
_ROUNDED: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def wire_dtype(config: Config) -> torch.dtype | None:
    """What rows are rounded to on their way; None where they are not."""
    name = config.cooperative.wire
    return None if name == "exact" else _ROUNDED[name]


class Cooperative(Engine):
    """Each rank computes the nodes it owns, for all ranks.

    Raises
    ------
    RequestError: the model is no stack of layers.
    """

    name = "cooperative"

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        trainer, graph = state.trainer, state.rows.graph
        node_type = graph.schema.node_types[trainer.node_type]
        self._travels_as = wire_dtype(state.config) or trainer.dtype
        self._wires = choose_wires(
            state.packed.module, node_type.feature_dim or 0, self._travels_as
        )
        assert isinstance(state.packed.module, GNN)
        self._model = state.packed.module
        # A channel of its own: plans are made while rows are exchanged.
        self._channel = state.cluster.second_channel()
        self._planner = Planner(
            trainer.sampler,
            graph.book,
            self._channel,
            [self._model.layer(index) for index in range(len(self._wires))],
            self._wires,
            trainer.dtype,
        )
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
        return wire_dtype(config) is not None

    def train_step(self, batch: GlobalBatch) -> StepReport:
        """See :class:`Engine`."""
        state = self.state
        state.packed.clear()
        with state.log.stage("sample") as fields:
            plan, fields["planning"] = self._take_plan(batch)
            fields["roots"] = plan.roots
            pairs = zip(plan.layers, self._wires, strict=True)
            fields["layers"] = [layer.describe(wire) for layer, wire in pairs]
        if self.upcoming is not None:
            self._under_way = self.upcoming, self._planning.submit(self._plan, self.upcoming)
        self._compute(plan.to(state.cluster.device), batch)
        return self.synchronise_and_update(batch)

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
        took = {"seconds": time.perf_counter() - start, "cpu": time.thread_time() - cpu}
        return plan, took

    def _compute(self, plan: IterationPlan, batch: GlobalBatch) -> None:
        """Forward and backward, together with the other ranks."""
        state, trainer = self.state, self.state.trainer
        with state.log.stage("gather", rows=int(plan.nodes.size), operation="own rows"):
            rows = trainer.read_rows(state.rows, "features", plan.nodes).to(trainer.dtype)
            stored = trainer.read_rows(state.rows, "labels", plan.nodes[: plan.roots])
            labels = trainer.objective.shaped(stored)
        with state.log.stage("compute", roots=plan.roots):
            for index, layer in enumerate(plan.layers):
                where = f"epoch {batch.epoch}, iteration {batch.iteration}, layer {index}"
                rows = self._layer(index, layer, rows, where)
            loss = trainer.objective.loss_sum(rows, labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                loss.backward()
            state.packed.loss += loss.detach()

    def _layer(self, index: int, plan: LayerPlan, h_own: Tensor, where: str) -> Tensor:
        """[destinations, width]: the new rows of this rank's destinations.

        Parameters
        ----------
        h_own: [num_own, width], this rank's rows of the layer before.
        """
        model, block, count = self._model, plan.block, plan.block.num_dst
        layer, log = model.layer(index), self.state.log
        with log.stage("compute", operation="project", layer=index):
            ready = model.prepare(index, plan.own, h_own)
            rows = layer.project(ready) if self._wires[index].projected else ready
            sent = plan.sending.select(rows).to(self._travels_as)
        exchange = RowExchange(
            self.state.cluster,
            log,
            sent,
            plan.sending.lengths,
            plan.counts,
            f"exchanging rows, {where}",
        )
        received = exchange.finish()
        with log.stage("compute", operation="aggregate", layer=index):
            rows = torch.cat((rows, received.to(rows.dtype)))
            if not self._wires[index].projected:
                rows = layer.project(rows)
            if plan.weights is None:
                combined = layer.aggregate(block, rows, ready[:count])
            else:
                assert isinstance(layer, SumLayer)
                combined = layer.combine(block, rows, plan.weights, ready[:count])
        with log.stage("compute", operation="update", layer=index):
            out = layer.update(ready[:count], combined)
            return model.finish(index, block, h_own[:count], out)
