"""Relation-aggregation-first training: relations are aggregated where they are stored (Heta).

The graph is divided by relation (``hopper partition --method meta``). What crosses a link is
partial aggregations of the roots and their gradients; input features never do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hopper.config.sections import TYPED_MODELS
from hopper.engines.engine import Engine, StepReport, TrainState
from hopper.engines.parameter_homes import ParameterHomes, servers_of_parameters
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.hetero.relation_first import RelationFirst
from hopper.hetero.root_shares import RootPlan, RootShares
from hopper.hetero.rooted import nodes_below, nodes_read
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN
from hopper.partition.layouts import ByRelation


class RelationAggregationFirst(Engine):
    """Each rank aggregates its server's relations for its part of the global batch, and finishes an
    equal part of the roots."""

    name = "raf"
    layouts = (ByRelation,)
    reads_remote_rows = False

    @classmethod
    def check(cls, request: Request) -> None:
        """See :class:`Engine`: it splits models by relation."""
        if not request.config.model.typed:
            raise RequestError(
                f"train.engine: raf aggregates by relation, as typed models do; expected one of "
                f"{', '.join(TYPED_MODELS)}, given model {request.config.model.name!r}"
            )

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        graph, model = state.rows.graph, state.packed.module
        assert isinstance(model, HGNN)
        holdings = state.request.reads.holdings
        servers = servers_of_parameters(model, holdings)
        self._homes = ParameterHomes(state.packed, state.cluster, servers)
        shares = RootShares(
            holdings,
            state.cluster.ranks_per_server,
            designated=state.config.raf.reduce == "designated",
        )
        self.forward = RelationFirst(state.cluster, state.log, model, shares)
        self._target = graph.schema.target_type()
        self._originals = graph.original_ids(self._target)

    def train_step(self, batch: GlobalBatch) -> StepReport:
        """See :class:`Engine`."""
        state, trainer = self.state, self.state.trainer
        state.packed.clear()
        with state.log.stage("sample") as fields:
            plan = self.forward.plan(batch.size)
            fields["roots"] = int(plan.mine.size)
            subgraph = trainer.sampler.sample(batch.roots[plan.mine], batch.epoch, batch.iteration)
        roots = batch.roots[plan.rows]
        self._fetch_learnable(subgraph, roots, batch)
        count = sum(int(nodes.size) for nodes in nodes_below(subgraph).values()) + roots.size
        with state.log.stage("gather", rows=int(count), operation="own rows"):
            x = {
                name: trainer.input_rows_of(state.rows, name, nodes)
                for name, nodes in nodes_below(subgraph).items()
            }
            x_roots = trainer.input_rows_of(state.rows, self._target, roots)
            labels = self._labels(batch, plan)
        where = f"epoch {batch.epoch}, iteration {batch.iteration}"
        with state.log.stage("compute", roots=int(plan.finishing.size)):
            with trainer.products():
                logits, tie = self.forward.logits(
                    plan, subgraph, x, x_roots, self._originals[roots], where
                )
                loss = trainer.objective.loss_sum(logits, labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                trainer.backward(state.packed, loss, tie)
        return self.synchronise_and_update(batch)

    def sum_gradients(self, operation: str) -> None:
        """See :class:`Engine`; what one server alone computes with stays with it."""
        self._homes.sum_gradients(operation)

    def complete_recorded(self, where: str) -> None:
        """See :class:`Engine`."""
        packed = self.state.packed
        self._homes.complete([packed.parameters, packed.gradients], f"recording, {where}")

    def parameter_squares(self, operation: str) -> float:
        """See :class:`Engine`."""
        return self._homes.squares(operation)

    def complete(self, where: str, *, moments: bool = False) -> None:
        """See :class:`Engine`."""
        parameters = self.state.packed.parameters
        tensors = [parameters]
        if moments:
            state = self.state.optimizer.state().values()
            tensors += [each for each in state if each.shape == parameters.shape]
        self._homes.complete(tensors, f"completing the model, {where}")

    def _labels(self, batch: GlobalBatch, plan: RootPlan) -> Tensor:
        trainer = self.state.trainer
        ids = batch.roots[plan.finishing]
        stored = trainer.read_rows_of(self.state.rows, "labels", self._target, ids)
        return trainer.objective.shaped(stored)

    def _fetch_learnable(
        self, subgraph: Subgraph, roots: NDArray[np.int64], batch: GlobalBatch
    ) -> None:
        """Read the learnable rows of an iteration, if there are any; collective."""
        if self.state.learnable is not None:
            self.fetch_learnable_rows(nodes_read(subgraph, self._target, roots), batch)
