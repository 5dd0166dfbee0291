"""The forward pass that all ranks compute together: the owner of a node computes its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.models.gnn import expect_own
from hopper.models.merged import merge_patterns
from hopper.models.relation_layer import MergedInputs
from hopper.ops import in_full, weighted_sum
from hopper.partials.exchange import KindsExchange
from hopper.partials.plan import IterationPlan, LayerPlan, Outgoing
from hopper.partials.stack import LayerInputs, Stack
from hopper.partials.transfer import Kind, LayerTransfer, RowKind, Sums
from hopper.timing.run_log import RunLog

Rows = Mapping[str, Tensor]
"""Rows by node type."""
Received = Mapping[Kind, Sequence[Tensor]]
"""By kind, the rows of every rank, [n, ...] each."""


@dataclass(frozen=True)
class OwnRows:
    """A rank's own rows in one layer, [own, ...]."""

    before: Rows
    """rows of the layer before, or input rows as they enter the first"""
    ready: Rows
    """the same rows as the layer reads them"""
    projected: Mapping[Relation, Tensor]
    """by relation whose rows travel projected"""

    def of(self, kind: RowKind) -> Tensor:
        """Return the rows of a kind."""
        return self.projected[kind] if isinstance(kind, Relation) else self.ready[kind]


@dataclass(eq=False)
class Forward:
    """Computes what plans say, layer by layer, and exchanges the rows that other ranks need.

    Plans must be made for the same ``transfers``. ``travels_as`` is the dtype on the network.
    """

    cluster: Cluster
    log: RunLog
    stack: Stack
    transfers: Sequence[LayerTransfer]
    travels_as: torch.dtype

    def rows(self, plan: IterationPlan, inputs: Rows, others: Rows, where: str) -> Rows:
        """Compute the last layer's rows of this rank's roots, [roots, width]; every rank must call
        it.

        ``inputs`` are the input rows of ``plan.nodes``, of which the last type's may still be on
        their way. ``others`` are those of other ranks, by type whose input rows travel.
        """
        rows, raw = inputs, others
        for index, layer in enumerate(plan.layers):
            rows = self._compute_layer(index, layer, rows, raw, f"{where}, layer {index}")
            # Only the first layer reads input rows.
            raw = {}
        return rows

    def _compute_layer(
        self, index: int, plan: LayerPlan, rows: Rows, raw: Rows, where: str
    ) -> Rows:
        """Compute the new rows of this rank's destinations, [destinations, width], from its rows of
        the layer before, [own, width], and for the first layer input rows of other ranks."""
        transfer, sent = self.transfers[index], list[dict[Kind, Tensor]]()
        with self.log.stage("compute", operation="project", layer=index):
            own = self._make_own(index, plan, rows)
            for has_gradient in (False, True):
                kinds = [
                    kind
                    for kind, layout in transfer.layouts.items()
                    if layout.has_gradient == has_gradient and kind not in transfer.raw
                ]
                sent.append(self._select(index, plan, own, kinds))
        received: dict[Kind, Sequence[Tensor]] = {name: [others] for name, others in raw.items()}
        # Every rank starts the same exchanges in the same order.
        constant, varying = (
            self._start(plan, kinds, f"exchanging rows, {where}")
            for kinds in (sent[0], _tie(sent[1], own.ready))
        )
        for exchange in (constant, varying):
            received |= {} if exchange is None else exchange.finish()
        with self.log.stage("compute", operation="aggregate", layer=index):
            return self.stack.new_rows(index, self._make_inputs(index, plan, own, received))

    def _make_own(self, index: int, plan: LayerPlan, rows: Rows) -> OwnRows:
        """Make this rank's rows ready, and project those that travel projected."""
        stack, before, ready = self.stack, dict[str, Tensor](), dict[str, Tensor]()
        for name in rows:
            before[name] = stack.enter(name, rows[name]) if index == 0 else rows[name]
            ready[name] = stack.prepare(index, plan.own[name], before[name])
        aggregations = stack.layers[index].aggregations
        for relation, aggregation in aggregations.items():
            expect_own(aggregation, ready[relation.src], plan.blocks.destinations[relation.dst])
        projected = {
            relation: in_full(aggregation.project(ready[relation.src]))
            for relation, aggregation in aggregations.items()
            if relation in self.transfers[index].layouts
        }
        return OwnRows(before, ready, projected)

    def _select(
        self, index: int, plan: LayerPlan, own: OwnRows, kinds: Sequence[Kind]
    ) -> dict[Kind, Tensor]:
        """Select or add up the rows to send: by kind, [n, ...]."""
        if self.cluster.world == 1:
            return {}
        rows: dict[Kind, Tensor] = {
            kind: own.of(kind).index_select(0, plan.outgoing[kind].rows)
            for kind in kinds
            if not isinstance(kind, Sums)
        }
        asked = {kind: plan.outgoing[kind] for kind in kinds if isinstance(kind, Sums)}
        return rows | self._add_up(index, asked, own)

    def _add_up(
        self, index: int, asked: Mapping[Sums, Outgoing], own: OwnRows
    ) -> dict[Kind, Tensor]:
        """Compute the partial sums to send: by kind, [n, ...]."""
        if not asked:
            return {}
        transfer, aggregations = self.transfers[index], self.stack.layers[index].aggregations
        # Sums are in float32 at least, even if there are none to send.
        example = in_full(next(iter(own.ready.values()))[:0])
        sums: dict[Kind, Tensor] = {
            kind: example.new_zeros(sum(outgoing.lengths), *transfer.layouts[kind].shape)
            for kind, outgoing in asked.items()
        }
        if transfer.merged:
            return sums | self._add_up_at_once(index, asked, own.ready)
        for kind, outgoing in asked.items():
            for number, (relation, (edges, weights)) in enumerate(outgoing.sums.items()):
                rows = own.of(transfer.kind_of(relation))
                if relation not in own.projected and kind.node_type not in transfer.added_as_read:
                    rows = in_full(aggregations[relation].project(rows))
                relation_sum = weighted_sum(edges, rows, weights)
                sums[kind] = relation_sum if number == 0 else sums[kind] + relation_sum
        return sums

    def _add_up_at_once(
        self, index: int, asked: Mapping[Sums, Outgoing], ready: Rows
    ) -> dict[Kind, Tensor]:
        """Return the partial sums of a layer that takes all of its relations at once, of the types
        to which any relation contributes."""
        sums = {
            relation: pattern
            for outgoing in asked.values()
            for relation, pattern in outgoing.sums.items()
        }
        if not sums:
            return {}
        relations = sorted(sums)
        merged = merge_patterns(
            {relation: sums[relation][0] for relation in relations},
            {name: len(rows) for name, rows in ready.items()},
            {kind.node_type: sum(outgoing.lengths) for kind, outgoing in asked.items()},
            sorted({relation.dst for relation in relations}),
        )
        weights = {relation: edge_weights for relation, (_, edge_weights) in sums.items()}
        layer = self.stack.layers[index].merged
        assert layer is not None
        total = layer.aggregate_merged(MergedInputs(merged, relations, ready, {}, weights))
        return {Sums(name): total[place] for name, place in merged.places.items()}

    def _start(
        self, plan: LayerPlan, sent: Mapping[Kind, Tensor], operation: str
    ) -> KindsExchange[Kind] | None:
        """Begin to exchange rows; return None if no kind of rows travels."""
        if not sent:
            return None
        return KindsExchange(
            self.cluster,
            self.log,
            sent,
            [plan.outgoing[kind].lengths for kind in sent],
            [plan.counts[kind] for kind in sent],
            self.travels_as,
            operation,
        )

    def _make_inputs(
        self, index: int, plan: LayerPlan, own: OwnRows, received: Received
    ) -> LayerInputs:
        """Put own and received rows together in the order of the blocks' sources."""
        stack, transfer = self.stack, self.transfers[index]
        others = {name: list(received.get(name, ())) for name in own.ready}
        for name in transfer.raw if received else ():
            entered = stack.enter(name, _join(others[name]))
            others[name] = [stack.prepare(index, plan.raw[name], entered)]
        sources = {name: [rows, *others[name]] for name, rows in own.ready.items()}
        if transfer.merged:
            return self._make_merged_inputs(plan, own, sources, received)
        projected: dict[Relation, Tensor] = {}
        for relation, aggregation in stack.layers[index].aggregations.items():
            # The first relation into a type has the sums over all relations among its sources.
            is_first = relation.dst not in {earlier.dst for earlier in projected}
            sums = received.get(Sums(relation.dst), ()) if is_first else ()
            if relation in own.projected:
                rows = [own.projected[relation], *received.get(relation, ())]
            elif relation.dst in transfer.added_as_read:
                rows = [in_full(aggregation.project(_join([*sources[relation.src], *sums])))]
                sums = ()
            else:
                rows = [in_full(aggregation.project(_join(sources[relation.src])))]
            projected[relation] = _join([*rows, *sums])
        return LayerInputs(plan.blocks, own.before, own.ready, projected, plan.weights, None)

    def _make_merged_inputs(
        self,
        plan: LayerPlan,
        own: OwnRows,
        sources: Mapping[str, Sequence[Tensor]],
        received: Received,
    ) -> LayerInputs:
        """Return the inputs of a layer that takes all of its relations at once."""
        rows, more = {name: _join(parts) for name, parts in sources.items()}, {}
        for name, ends in plan.more.items():
            sums = torch.cat(list(received[Sums(name)]))
            zeros = sums.new_zeros(plan.blocks.destinations[name], *sums.shape[1:])
            more[name] = zeros.index_add(0, ends, sums)
        if not more:
            # No sums came, but every rank must send gradients back: empty parts tie them in.
            name, first_rows = next(iter(rows.items()))
            empty_parts = [
                part.reshape(0, *first_rows.shape[1:])
                for kind, parts in received.items()
                if isinstance(kind, Sums)
                for part in parts
            ]
            rows[name] = _join([first_rows, *empty_parts])
        return LayerInputs(plan.blocks, own.before, rows, None, plan.weights, more or None)


def _tie(sent: Mapping[Kind, Tensor], ready: Rows) -> Mapping[Kind, Tensor]:
    """Give rows a gradient: gradients come back to every rank, even to one that sends nothing."""
    if not sent or any(rows.requires_grad for rows in sent.values()):
        return sent
    kind, first_rows = next(iter(sent.items()))
    # Rows without a gradient may be projected by weights that have one.
    tie = first_rows.new_zeros((), requires_grad=torch.is_grad_enabled())
    return {**sent, kind: first_rows + sum((rows[:0].sum() for rows in ready.values()), tie)}


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate rows; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
