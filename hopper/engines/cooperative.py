"""Cooperative training: ranks compute the global batch together, and each node's layer once.

Hidden rows or their partial sums cross the network, and so do their gradients on the way back.
Input features travel only where they are narrower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hopper.device.copies import to_device
from hopper.engines.engine import Engine, Plan, Spec, TrainState
from hopper.engines.shared_roots import SharedRoots, pairs_by_rank, share_roots
from hopper.features import InputRows
from hopper.graph.topology import Ids
from hopper.micrograph.route import GlobalBatch
from hopper.ops import to_floats
from hopper.partials import (
    Forward,
    IterationPlan,
    KindsExchange,
    Planner,
    choose_transfers,
    make_stack,
)
from hopper.timing.run_log import RunLog


@dataclass(frozen=True)
class CooperativePlan(Plan):
    """What a rank computes, sends and receives in every layer of an iteration, on its device."""

    layers: IterationPlan
    others: Mapping[str, Tensor]
    """input rows [n, dim] of other ranks' nodes, by type whose input rows travel"""
    shared: SharedRoots | None
    """which rows of roots ranks exchange, where edges are predicted"""

    @property
    def nbytes(self) -> int:
        """The plan's approximate size, with the rows of other ranks."""
        return super().nbytes + sum(rows.nbytes for rows in self.others.values())


@dataclass(frozen=True)
class CooperativeInputs:
    """The features [n, dim] that a rank reads of its nodes by type, and of edges by relation as
    ``src/rel/dst``; and the labels of its roots, or of its edges where edges are predicted."""

    features: dict[str, Tensor]
    edges: dict[str, Tensor]
    labels: Tensor


class Cooperative(Engine[CooperativePlan, CooperativeInputs]):
    """Each rank computes the rows of the nodes that it owns, for all ranks."""

    spec = Spec(
        "cooperative",
        draws_own_nodes=True,
        reads_remote_rows=False,
        plans_on_host=True,
        plans_together=True,
        predicts_links=True,
        exact_options={"cooperative.wire": "exact"},
    )

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        trainer, reads, cluster = state.trainer, state.request.reads, state.cluster
        self._target = reads.target
        in_dim = reads.inputs[reads.target].width
        self.stack = make_stack(state.packed.module, trainer.sampler, in_dim, self.spec.name)
        wire = state.config.cooperative.wire
        self._travels_as = trainer.dtype if wire == "exact" else getattr(torch, wire)
        self.transfers = choose_transfers(self.stack, self._travels_as, learned=reads.tables)
        stages = self.stack, self.transfers
        self._forward = Forward(cluster, state.log, *stages, self._travels_as)
        self._placement = state.rows.graph.placement(cluster.ranks_per_server)
        links = trainer.sampler, self._placement, state.channel
        self.planner = Planner(*links, *stages, reads.edges)

    def plan(self, batch: GlobalBatch) -> CooperativePlan:
        """Plan all layers together with the other ranks, and exchange input rows that travel."""
        state, trainer, cluster = self.state, self.state.trainer, self.state.cluster
        sampler, shared = trainer.sampler, None
        with state.log.stage("sample") as fields:
            if trainer.links is None:
                roots = {self._target: sampler.versions(self._target, batch.of_home(cluster.rank))}
            else:
                pairs = pairs_by_rank(trainer.links, batch, cluster.world)
                shared = share_roots(
                    pairs,
                    lambda name, ids: self._placement.rank_of(name, sampler.nodes_of(name, ids)),
                    cluster.rank,
                )
                roots = dict(shared.versions)
            layers = self.planner.plan(roots, batch.epoch, batch.iteration)
            fields["roots"] = layers.roots
            fields["layers"] = [
                layer.describe(transfer)
                for layer, transfer in zip(layers.layers, self.transfers, strict=True)
            ]
        others = self._exchange_input_rows(layers, batch.where)
        reads = {name: [ids] for name, ids in (*layers.nodes.items(), *layers.edges.items())}
        on_device = layers.to(cluster.device)
        edges = sum(layer.num_edges for layer in on_device.layers)
        return CooperativePlan(
            batch, reads, on_device, others, shared, one_backward=True, num_edges=edges
        )

    def _exchange_input_rows(self, layers: IterationPlan, where: str) -> dict[str, Tensor]:
        """Exchange the input rows that travel: no parameter changes them, so they may go ahead.

        Every rank must call it, in the order of the plans.
        """
        trainer, state, first = self.state.trainer, self.state, layers.layers[0]
        if state.channel.world == 1 or not first.raw:
            return {}
        # These rows are counted when this rank reads all of its own.
        rows, sent = state.rows.with_own_counts(), {}
        with state.log.stage("gather", operation="input rows of others"):
            for name in sorted(first.raw):
                ids = layers.nodes[name][first.outgoing[name].rows.numpy()]
                features = rows.gather("features", trainer.reads.inputs[name].node_type, ids)
                sent[name] = to_floats(torch.from_numpy(features), trainer.dtype)
            routes = [first.outgoing[n].lengths for n in sent], [first.counts[n] for n in sent]
            form = self._travels_as, f"exchanging input rows, {where}"
            received = KindsExchange(state.channel, RunLog(None), sent, *routes, *form).finish()
        device = state.cluster.device
        return {name: to_device(torch.cat(parts), device) for name, parts in received.items()}

    def read(self, plan: CooperativePlan, rows: InputRows) -> CooperativeInputs:
        """Read the features of this rank's nodes and edges, and the labels of its roots."""
        trainer, nodes = self.state.trainer, self._read_by_model(plan)
        with self.state.log.stage("gather", rows=plan.layers.num_nodes, operation="own rows"):
            features = trainer.read_features(rows, nodes)
            edges = {
                table: trainer.read_table(rows, table, ids)
                for table, ids in plan.layers.edges.items()
            }
            roots = plan.layers.nodes[self._target][: plan.layers.roots]
            pairs = None if plan.shared is None else plan.shared.pairs
            labels = trainer.read_labels(rows, roots, pairs)
        return CooperativeInputs(features, edges, labels)

    def compute(self, plan: CooperativePlan, inputs: CooperativeInputs) -> None:
        """Compute every layer together with the other ranks, forward and backward."""
        state, batch, where = self.state, plan.batch, plan.batch.where
        with state.log.stage("compute", roots=plan.layers.roots):
            plan.layers.attach(inputs.edges)
            x = state.trainer.input_rows(self._read_by_model(plan), inputs.features)
            with state.trainer.products():
                rows = self._forward.rows(plan.layers, x, plan.others, where)
                if plan.shared is None:
                    logits = self.stack.logits(rows[self._target])
                else:
                    logits = plan.shared.score(state, self.stack.logits, rows, where)
                loss = state.trainer.objective.loss_sum(logits, inputs.labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                state.trainer.backward(state.packed, loss)

    def _read_by_model(self, plan: CooperativePlan) -> dict[str, Ids]:
        """Return the nodes whose input rows the model reads, by type."""
        return {name: plan.layers.nodes[name] for name in self.stack.widths}
