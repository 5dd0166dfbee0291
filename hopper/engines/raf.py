"""Relation-aggregation-first training: relations are aggregated where they are stored (Heta).

The graph is divided by relation (``hopper partition --method meta``). Partials of the roots and
their gradients cross the network. Input features never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hopper.config.model import TYPED_MODELS
from hopper.engines.engine import Engine, Plan, Spec, TrainState
from hopper.engines.request import Request
from hopper.engines.sharded_parameters import servers_of_parameters
from hopper.engines.shared_roots import SharedRoots, find_roots, pairs_by_rank, share_roots
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph.block import TypedBlocks
from hopper.graph.topology import Ids
from hopper.hetero.relation_first import RelationFirst, Roots
from hopper.hetero.root_shares import RootPlan, RootShares
from hopper.hetero.rooted import find_read_nodes, nodes_below, root_name
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN
from hopper.partition.by_relation import ByRelation


@dataclass(frozen=True)
class RafPlan(Plan):
    """A rank's part of an iteration."""

    roots: Mapping[str, Ids]
    """by type, [n] int64 global ids: the roots of all ranks. A root of several times is repeated
    for each"""
    shares: Mapping[str, RootPlan]
    """by type, which of the roots this rank aggregates, finishes and reads"""
    subgraph: Subgraph
    """what lies below the roots that this rank aggregates"""
    roots_read: Mapping[str, Ids]
    """by type, the roots whose input rows this rank reads, if there are any"""
    shared: SharedRoots | None
    """which rows of roots ranks exchange, where edges are predicted"""


@dataclass(frozen=True)
class RafInputs:
    """The features [n, dim] that a rank reads, by type, of nodes below the roots and of roots; the
    hops, with features of their edges; and the labels of the roots that it finishes, or of its
    edges where edges are predicted."""

    below: dict[str, Tensor]
    of_roots: dict[str, Tensor]
    hops: list[TypedBlocks]
    labels: Tensor


class RelationAggregationFirst(Engine[RafPlan, RafInputs]):
    """Each rank aggregates its server's relations for a part of the global batch, and finishes an
    equal part of the roots: it combines their relations and computes their losses."""

    spec = Spec(
        "raf",
        layouts=(ByRelation,),
        reads_remote_rows=False,
        predicts_links=True,
        plan_options=(
            "raf.reduce",
            "model.name",
            "model.root_weight",
            "model.aggregate",
            "model.combine",
            "model.input_weights",
        ),
    )

    @classmethod
    def check(cls, request: Request) -> None:
        """Refuse models that do not aggregate by relation."""
        if not request.config.model.typed:
            raise RequestError(
                f"train.engine: raf aggregates by relation, as typed models do; expected one of "
                f"{', '.join(TYPED_MODELS)}, given model {request.config.model.name!r}"
            )

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        graph, model = state.rows.graph, state.packed.module
        assert isinstance(model, HGNN)
        partitions = state.request.reads.partitions
        types, designated = graph.schema.root_types, state.config.raf.reduce == "designated"
        by_name = servers_of_parameters(model, partitions, types)
        self.parameter_servers = {n: min(own) for n, own in by_name.items() if len(own) == 1}
        per_server = state.cluster.ranks_per_server
        shares = {
            name: RootShares(partitions, per_server, name, designated=designated) for name in types
        }
        self.forward = RelationFirst(state.cluster, state.log, model, shares)
        self._head = model.head
        self._target = graph.schema.target_type()
        self._originals = {name: graph.original_ids(name) for name in types}

    def plan(self, batch: GlobalBatch) -> RafPlan:
        """Divide the roots among ranks, and sample below the roots that this rank aggregates."""
        cluster, trainer, shared = self.state.cluster, self.state.trainer, None
        sampler, forward = trainer.sampler, self.forward
        with self.state.log.stage("sample") as fields:
            if trainer.links is None:
                roots = {self._target: sampler.versions(root_name(self._target), batch.roots)}
            else:
                pairs = pairs_by_rank(trainer.links, batch, cluster.world)
                roots = find_roots(pairs)
                finishers = {name: forward.finishers(name, ids.size) for name, ids in roots.items()}
                shared = share_roots(
                    pairs,
                    lambda name, ids: finishers[name][np.searchsorted(roots[name], ids)],
                    cluster.rank,
                )
            shares = forward.plan({name: ids.size for name, ids in roots.items()})
            mine = {root_name(name): roots[name][share.mine] for name, share in shares.items()}
            fields["roots"] = sum(int(ids.size) for ids in mine.values())
            subgraph = sampler.sample_versions(mine, batch.epoch, batch.iteration)
            subgraph = subgraph.with_edges(trainer.reads.edges)
        nodes = {name: sampler.nodes_of(root_name(name), ids) for name, ids in roots.items()}
        # This server may not store rows of types without roots to read.
        read = {n: ids for n, share in shares.items() if (ids := nodes[n][share.rows]).size}
        return RafPlan(
            batch,
            find_read_nodes(subgraph, read),
            nodes,
            shares,
            subgraph,
            read,
            shared,
            one_backward=True,
            num_edges=subgraph.num_edges,
        )

    def read(self, plan: RafPlan, rows: PartitionedRows) -> RafInputs:
        """Read the features below the roots, those of roots, and the labels to compare with."""
        state, trainer = self.state, self.state.trainer
        count = sum(int(ids.size) for groups in plan.reads.values() for ids in groups)
        with state.log.stage("gather", rows=count, operation="own rows"):
            below = trainer.read_features(rows, nodes_below(plan.subgraph))
            of_roots = trainer.read_features(rows, plan.roots_read)
            edges = trainer.read_edge_features(rows, plan.subgraph)
            finished = plan.roots[self._target][plan.shares[self._target].finishing]
            pairs = None if plan.shared is None else plan.shared.pairs
            labels = trainer.read_labels(rows, finished, pairs)
        hops = plan.subgraph.typed_blocks(state.cluster.device, edges)
        with state.log.stage("sample", operation="lay out"):
            self.forward.lay_out(hops)
        return RafInputs(below, of_roots, hops, labels)

    def compute(self, plan: RafPlan, inputs: RafInputs) -> None:
        """Aggregate, exchange partials and finish roots, then run the backward pass."""
        state, trainer, batch = self.state, self.state.trainer, plan.batch
        finished = sum(int(share.finishing.size) for share in plan.shares.values())
        with state.log.stage("compute", roots=finished):
            x = trainer.input_rows(nodes_below(plan.subgraph), inputs.below)
            x_roots, roots = trainer.input_rows(plan.roots_read, inputs.of_roots), {}
            for name, share in plan.shares.items():
                original = self._originals[name][plan.roots[name][share.rows]]
                roots[name] = Roots(share, original, x_roots.get(name))
            with trainer.products():
                rows, tie = self.forward.rows(roots, inputs.hops, x, batch.where)
                if plan.shared is None:
                    logits: Tensor = self._head(rows[self._target])
                else:
                    logits = plan.shared.score(state, self._head, rows, batch.where)
                loss = trainer.objective.loss_sum(logits, inputs.labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                trainer.backward(state.packed, loss, tie)
