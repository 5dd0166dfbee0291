"""Relation-aggregation-first training: relations are aggregated where they are stored (Heta).

The graph is divided by relation (``hopper partition --method meta``). What crosses a link is
partial aggregations of the roots and their gradients; input features never do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hopper.config import Config
from hopper.config.model import TYPED_MODELS
from hopper.engines.engine import Engine, Plan, TrainState
from hopper.engines.parameter_homes import ParameterHomes, homes_by_relation
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph.schema import Relation
from hopper.hetero.relation_first import RelationFirst
from hopper.hetero.root_shares import RootPlan, RootShares
from hopper.hetero.rooted import nodes_below, nodes_read
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN
from hopper.partition.layouts import ByRelation


@dataclass(frozen=True)
class RafPlan(Plan):
    """A rank's part of an iteration.

    Attributes
    ----------
    shares: the roots that it aggregates, finishes and reads.
    subgraph: below those that it aggregates.
    """

    shares: RootPlan
    subgraph: Subgraph

    @property
    def num_edges(self) -> int:
        """See :class:`Plan`."""
        return self.subgraph.num_edges


@dataclass(frozen=True)
class RafInputs:
    """Features by type of the nodes below the roots, and of the roots that are read, [nodes, dim];
    by relation, those of edges; and labels of the roots that are finished."""

    below: dict[str, Tensor]
    of_roots: dict[str, Tensor]
    edges: dict[Relation, Tensor]
    labels: Tensor


class RelationAggregationFirst(Engine[RafPlan, RafInputs]):
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
        homes = homes_by_relation(model, holdings)
        self.homes = ParameterHomes(state.packed, state.cluster, homes)
        shares = RootShares(
            holdings,
            state.cluster.ranks_per_server,
            designated=state.config.raf.reduce == "designated",
        )
        self.forward = RelationFirst(state.cluster, state.log, model, shares)
        self._head = model.head
        self._target = graph.schema.target_type()
        self._originals = graph.original_ids(self._target)

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """See :class:`Engine`."""
        of_model = ("name", "root_weight", "aggregate", "combine", "input_weights")
        return [cls.name, config.raf.reduce, *(getattr(config.model, each) for each in of_model)]

    def plan(self, batch: GlobalBatch) -> RafPlan:
        """See :class:`Engine`."""
        with self.state.log.stage("sample") as fields:
            shares = self.forward.plan(batch.size)
            fields["roots"] = int(shares.mine.size)
            roots, sampler = batch.roots[shares.mine], self.state.trainer.sampler
            subgraph = sampler.sample(roots, batch.epoch, batch.iteration)
            subgraph = subgraph.with_edges(self.state.trainer.reads.edges)
        reads = nodes_read(subgraph, self._target, batch.roots[shares.rows])
        return RafPlan(batch, reads, shares, subgraph)

    def read(self, plan: RafPlan, rows: PartitionedRows) -> RafInputs:
        """See :class:`Engine`."""
        state, trainer, batch = self.state, self.state.trainer, plan.batch
        count = sum(int(ids.size) for groups in plan.reads.values() for ids in groups)
        with state.log.stage("gather", rows=count, operation="own rows"):
            below = trainer.features_of(rows, nodes_below(plan.subgraph))
            of_roots = trainer.features_of(rows, self._roots_read(plan))
            edges = trainer.edge_features_of(rows, plan.subgraph)
            labels = trainer.labels_of(rows, batch.roots[plan.shares.finishing])
        return RafInputs(below, of_roots, edges, labels)

    def goes_back_once(self, plan: RafPlan) -> bool:
        """See :class:`Engine`."""
        return True

    def compute(self, plan: RafPlan, inputs: RafInputs) -> None:
        """See :class:`Engine`."""
        state, trainer, batch, shares = self.state, self.state.trainer, plan.batch, plan.shares
        with state.log.stage("compute", roots=int(shares.finishing.size)):
            roots = self._roots_read(plan)
            x = trainer.with_learned(nodes_below(plan.subgraph), inputs.below)
            x_roots = trainer.with_learned(roots, inputs.of_roots)[self._target]
            with trainer.products():
                finished, tie = self.forward.rows(
                    shares,
                    plan.subgraph,
                    inputs.edges,
                    x,
                    x_roots,
                    self._originals[roots[self._target]],
                    batch.where,
                )
                logits = self._head(finished)
                loss = trainer.objective.loss_sum(logits, inputs.labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                trainer.backward(state.packed, loss, tie)

    def _roots_read(self, plan: RafPlan) -> dict[str, NDArray[np.int64]]:
        return {self._target: plan.batch.roots[plan.shares.rows]}
