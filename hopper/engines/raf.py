"""Relation-aggregation-first training: relations are aggregated where they are stored (Heta).

The graph is divided by relation (``hopper partition --method meta``). What crosses a link is
partial aggregations of the roots and their gradients; input features never do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.config import Config
from hopper.config.model import TYPED_MODELS
from hopper.engines.engine import Engine, Plan, TrainState
from hopper.engines.parameter_homes import ParameterHomes, homes_by_relation
from hopper.engines.request import Request
from hopper.engines.shared_roots import SharedRoots, pairs_by_rank, roots_of_pairs, share_roots
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph.schema import Relation
from hopper.hetero.relation_first import RelationFirst, Roots
from hopper.hetero.root_shares import RootPlan, RootShares
from hopper.hetero.rooted import nodes_below, nodes_read, roots_of
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN
from hopper.partition.layouts import ByRelation
from hopper.tasks import pair_scores


@dataclass(frozen=True)
class RafPlan(Plan):
    """A rank's part of an iteration.

    Attributes
    ----------
    roots: by type, [n] int64 global ids: those of all ranks, one of several times for each.
    shares: by type, which of them it aggregates, finishes and reads.
    subgraph: below those that it aggregates.
    shared: which rows of roots ranks hand each other, where edges are predicted.
    """

    roots: Mapping[str, NDArray[np.int64]]
    shares: Mapping[str, RootPlan]
    subgraph: Subgraph
    shared: SharedRoots | None

    @property
    def roots_read(self) -> dict[str, NDArray[np.int64]]:
        """By type, the roots whose own rows it reads."""
        return {each: self.roots[each][own.rows] for each, own in self.shares.items()}

    @property
    def num_finished(self) -> int:
        """How many roots it finishes."""
        return sum(int(each.finishing.size) for each in self.shares.values())

    @property
    def num_edges(self) -> int:
        """See :class:`Plan`."""
        return self.subgraph.num_edges


@dataclass(frozen=True)
class RafInputs:
    """Features by type of the nodes below the roots, and of the roots that are read, [nodes, dim];
    by relation, those of edges; and labels of the roots that are finished, or of pairs."""

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
    predicts_links = True

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
        types, designated = graph.schema.root_types, state.config.raf.reduce == "designated"
        homes = homes_by_relation(model, holdings, types)
        self.homes = ParameterHomes(state.packed, state.cluster, homes)
        per_server = state.cluster.ranks_per_server
        shares = {
            each: RootShares(holdings, per_server, each, designated=designated) for each in types
        }
        self.forward = RelationFirst(state.cluster, state.log, model, shares)
        self._head = model.head
        self._target = graph.schema.target_type()
        self._originals = {each: graph.original_ids(each) for each in types}

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """See :class:`Engine`."""
        of_model = ("name", "root_weight", "aggregate", "combine", "input_weights")
        return [cls.name, config.raf.reduce, *(getattr(config.model, each) for each in of_model)]

    def plan(self, batch: GlobalBatch) -> RafPlan:
        """See :class:`Engine`."""
        cluster, trainer, shared = self.state.cluster, self.state.trainer, None
        sampler = trainer.sampler
        with self.state.log.stage("sample") as fields:
            if trainer.links is None:
                roots = {self._target: sampler.versions(roots_of(self._target), batch.roots)}
            else:
                pairs = pairs_by_rank(trainer.links, batch, cluster.world)
                roots = roots_of_pairs(pairs)
                shared = share_roots(pairs, self._finishers(roots), cluster.rank)
            shares = self.forward.plan({each: ids.size for each, ids in roots.items()})
            mine = {roots_of(each): roots[each][own.mine] for each, own in shares.items()}
            fields["roots"] = sum(int(ids.size) for ids in mine.values())
            subgraph = sampler.sample_versions(mine, batch.epoch, batch.iteration)
            subgraph = subgraph.with_edges(trainer.reads.edges)
        nodes = {each: sampler.nodes_of(roots_of(each), own) for each, own in roots.items()}
        made = RafPlan(batch, {}, nodes, shares, subgraph, shared)
        return replace(made, reads=nodes_read(subgraph, made.roots_read))

    def _finishers(
        self, roots: Mapping[str, NDArray[np.int64]]
    ) -> Callable[[str, NDArray[np.int64]], NDArray[np.int64]]:
        """Tells, of some of the roots of a type, which rank finishes each.

        Parameters
        ----------
        roots: by type, versions, ascending: those of all ranks.
        """
        ranks = {each: self.forward.finishers(each, ids.size) for each, ids in roots.items()}
        return lambda name, ids: ranks[name][np.searchsorted(roots[name], ids)]

    def read(self, plan: RafPlan, rows: PartitionedRows) -> RafInputs:
        """See :class:`Engine`."""
        state, trainer = self.state, self.state.trainer
        count = sum(int(ids.size) for groups in plan.reads.values() for ids in groups)
        with state.log.stage("gather", rows=count, operation="own rows"):
            below = trainer.features_of(rows, nodes_below(plan.subgraph))
            of_roots = trainer.features_of(rows, _some(plan.roots_read))
            edges = trainer.edge_features_of(rows, plan.subgraph)
            finished = plan.roots[self._target][plan.shares[self._target].finishing]
            pairs = None if plan.shared is None else plan.shared.pairs
            labels = trainer.answers(rows, finished, pairs)
        return RafInputs(below, of_roots, edges, labels)

    def goes_back_once(self, plan: RafPlan) -> bool:
        """See :class:`Engine`."""
        return True

    def compute(self, plan: RafPlan, inputs: RafInputs) -> None:
        """See :class:`Engine`."""
        state, trainer, batch = self.state, self.state.trainer, plan.batch
        with state.log.stage("compute", roots=plan.num_finished):
            x = trainer.with_learned(nodes_below(plan.subgraph), inputs.below)
            read = plan.roots_read
            x_roots = trainer.with_learned(_some(read), inputs.of_roots)
            roots = {
                each: Roots(own, self._originals[each][read[each]], x_roots.get(each))
                for each, own in plan.shares.items()
            }
            with trainer.products():
                finished, tie = self.forward.rows(
                    roots, plan.subgraph, inputs.edges, x, batch.where
                )
                logits = self._logits(plan, finished)
                loss = trainer.objective.loss_sum(logits, inputs.labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                trainer.backward(state.packed, loss, tie)

    def _logits(self, plan: RafPlan, finished: Mapping[str, Tensor]) -> Tensor:
        """[n, ...]: of the roots that this rank finishes, or the scores of its links; collective.

        Parameters
        ----------
        finished: by type, rows of roots.
        """
        state = self.state
        if plan.shared is None:
            logits: Tensor = self._head(finished[self._target])
            return logits
        own = torch.cat([self._head(finished[each]) for each in plan.shared.versions])
        ends = plan.shared.exchange(state.cluster, state.log, own, plan.batch.where)
        return pair_scores(state.packed.module, ends, plan.shared.pairs)


def _some(nodes: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """By type, nodes; types without any are missing, whose rows this server may not store."""
    return {each: ids for each, ids in nodes.items() if ids.size}
