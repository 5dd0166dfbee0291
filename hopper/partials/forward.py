"""The forward pass that all ranks compute together: the owner of a node computes its layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hopper.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.models.merged import merge_patterns
from hopper.ops import in_full, weighted_sum
from hopper.partials.exchange import KindsExchange
from hopper.partials.join_parts import join_parts
from hopper.partials.own_rows import OwnLayer, OwnRows, Rows
from hopper.partials.plan import IterationPlan, LayerPlan, Outgoing
from hopper.partials.stack import LayerInputs, Stack
from hopper.partials.wire import Kind, Sums, Wires
from hopper.run_log import RunLog


class Forward:
    """Computes what plans say, layer by layer, and exchanges the rows that other ranks need.

    Parameters
    ----------
    wires: by layer, how rows may travel; the plans must be made for the same.
    travels_as: dtype of rows on the network.
    """

    def __init__(
        self,
        cluster: Cluster,
        log: RunLog,
        stack: Stack,
        wires: Sequence[Wires],
        travels_as: torch.dtype,
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._stack = stack
        self._wires = wires
        self._travels_as = travels_as

    def rows(
        self, plan: IterationPlan, inputs: Rows, others: Mapping[str, Tensor], where: str
    ) -> Mapping[str, Tensor]:
        """Compute the last layer's rows of this rank's roots; every rank must call it.

        Parameters
        ----------
        inputs: by type that the model reads, [n, dim], the input rows of ``plan.nodes``. The last
            type's rows may still be on their way when this is called.
        others: by type whose input rows travel, the rows of other ranks, from
            :func:`exchange_input_rows`.
        where: names the epoch and iteration in errors.

        Returns
        -------
        By type, [roots, width].
        """
        rows, raw = inputs, others
        for index, layer in enumerate(plan.layers):
            rows = self._compute_layer(index, layer, rows, raw, f"{where}, layer {index}")
            # Only the first layer reads input rows.
            raw = {}
        return rows

    def _compute_layer(
        self, index: int, plan: LayerPlan, rows: Rows, raw: Mapping[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """Compute the new rows of this rank's destinations: by type, [destinations, width].

        Parameters
        ----------
        rows: by type, [own, width], this rank's rows of the layer before; input rows for the first.
        raw: by type, input rows of other ranks.
        """
        log, wires, operation = self._log, self._wires[index], f"exchanging rows, {where}"
        own_layer = OwnLayer(self._stack, wires, index, plan, rows)
        constant, varying = (
            [kind for kind in wires.kinds(has_gradient=has_gradient) if kind not in wires.raw]
            for has_gradient in (False, True)
        )
        with log.stage("compute", operation="project", layer=index):
            awaited = own_layer.make_awaited()
            known: dict[Any, Tensor] = {**awaited.ready, **awaited.projected}
            outgoing = [
                self._select(plan, kinds, known) | self._add_up(index, plan, kinds, awaited)
                for kinds in (constant, varying)
            ]
        # Every rank starts the same exchanges in the same order.
        exchanges = [
            self._start(plan, outgoing[0], (), operation),
            self._start(plan, outgoing[1], awaited.ready.values(), operation),
        ]
        with log.stage("compute", operation="project", layer=index):
            # The other own rows are made while the awaited ones travel. In the backward pass,
            # their gradients are computed while those of the awaited ones come back.
            own_layer.make_rest()
        received: dict[Kind, list[Tensor]] = {name: [others] for name, others in raw.items()}
        for exchange in exchanges:
            received |= {} if exchange is None else exchange.finish()
        with log.stage("compute", operation="aggregate", layer=index):
            inputs = self._make_inputs(index, plan, own_layer, received)
            return self._stack.new_rows(index, inputs)

    def _select(
        self, plan: LayerPlan, kinds: Sequence[Kind], rows: Mapping[Any, Tensor]
    ) -> dict[Kind, Tensor]:
        """Select the rows to send, without partial sums: by kind, [n, ...]."""
        if self._cluster.world == 1:
            return {}
        return {
            kind: rows[kind].index_select(0, plan.outgoing[kind].rows)
            for kind in kinds
            if not isinstance(kind, Sums)
        }

    def _add_up(
        self, index: int, plan: LayerPlan, kinds: Sequence[Kind], awaited: OwnRows
    ) -> dict[Kind, Tensor]:
        """Compute the partial sums to send: by kind, [n, ...]."""
        wanted = {kind: plan.outgoing[kind] for kind in kinds if isinstance(kind, Sums)}
        if self._cluster.world == 1 or not wanted:
            return {}
        # Sums are in float32 at least, even if there are none to send.
        wires, example = self._wires[index], in_full(next(iter(awaited.ready.values()))[:0])
        aggregations = self._stack.layers[index].aggregations
        sums: dict[Kind, Tensor] = {
            kind: example.new_zeros(sum(outgoing.lengths), *wires.forms[kind].shape)
            for kind, outgoing in wanted.items()
        }
        if wires.merged:
            return sums | self._add_up_at_once(index, wanted, awaited.ready)
        for kind, outgoing in wanted.items():
            for number, (relation, (edges, weights)) in enumerate(outgoing.sums.items()):
                is_projected = relation in awaited.projected
                rows = awaited.projected[relation] if is_projected else awaited.ready[relation.src]
                if not is_projected and kind.node_type not in wires.added_as_read:
                    rows = in_full(aggregations[relation].project(rows))
                relation_sum = weighted_sum(edges, rows, weights)
                sums[kind] = relation_sum if number == 0 else sums[kind] + relation_sum
        return sums

    def _add_up_at_once(
        self, index: int, wanted: Mapping[Sums, Outgoing], ready: Rows
    ) -> dict[Kind, Tensor]:
        """Return the partial sums of a layer that takes all of its relations at once.

        Types to which no relation contributes are absent.
        """
        sums = {
            relation: pattern
            for outgoing in wanted.values()
            for relation, pattern in outgoing.sums.items()
        }
        if not sums:
            return {}
        relations = sorted(sums)
        merged = merge_patterns(
            {relation: sums[relation][0] for relation in relations},
            {name: len(rows) for name, rows in ready.items()},
            {kind.node_type: sum(outgoing.lengths) for kind, outgoing in wanted.items()},
            sorted({relation.dst for relation in relations}),
        )
        weights = {relation: edge_weights for relation, (_, edge_weights) in sums.items()}
        total = self._stack.add_up(index, merged, relations, ready, weights)
        return {Sums(name): total[place] for name, place in merged.places.items()}

    def _start(
        self,
        plan: LayerPlan,
        sent: Mapping[Kind, Tensor],
        read: Iterable[Tensor],
        operation: str,
    ) -> KindsExchange[Kind] | None:
        """Begin to exchange rows; return None if no kind of rows travels.

        Parameters
        ----------
        sent: by kind, the rows to send.
        read: the rows that ``sent`` is made of, if gradients come back. Gradients come to every
            rank, even to one that sends nothing.
        """
        if not sent:
            return None
        read_rows = list(read)
        if read_rows and not any(rows.requires_grad for rows in sent.values()):
            kind, first_rows = next(iter(sent.items()))
            # Rows without a gradient may be projected by weights that have one.
            tie = first_rows.new_zeros((), requires_grad=torch.is_grad_enabled())
            sent = {**sent, kind: first_rows + sum((rows[:0].sum() for rows in read_rows), tie)}
        return KindsExchange(
            *(self._cluster, self._log, sent),
            *([plan.outgoing[kind].lengths for kind in sent], [plan.counts[kind] for kind in sent]),
            *(self._travels_as, operation),
        )

    def _make_inputs(
        self,
        index: int,
        plan: LayerPlan,
        own_layer: OwnLayer,
        received: Mapping[Kind, list[Tensor]],
    ) -> LayerInputs:
        """Put own and received rows together in the order of the blocks' sources."""
        stack, wires, ready = self._stack, self._wires[index], own_layer.ready
        others = {name: received.get(name, []) for name in ready}
        for name in wires.raw if received else ():
            entered = stack.enter(name, join_parts(others[name]))
            others[name] = [stack.prepare(index, plan.raw[name], entered)]
        if wires.merged:
            return self._make_merged_inputs(plan, own_layer, others, received)
        projected: dict[Relation, Tensor] = {}
        for relation, aggregation in stack.layers[index].aggregations.items():
            rows = others[relation.src]
            # The first relation into a type has the sums over all relations among its sources.
            is_first = relation.dst not in {earlier.dst for earlier in projected}
            sums = received.get(Sums(relation.dst), []) if is_first else []
            if relation.dst in wires.added_as_read:
                rows, sums = [*rows, *sums], []
            received_projected = [*received.get(relation, []), *sums]
            if own_layer.is_projected(relation):
                made_here = [in_full(aggregation.project(join_parts(rows)))] if rows else []
                projected[relation] = own_layer.join_projected(
                    relation, [*made_here, *received_projected]
                )
            else:
                made_here = [in_full(aggregation.project(join_parts([ready[relation.src], *rows])))]
                projected[relation] = join_parts([*made_here, *received_projected])
        return LayerInputs(plan.blocks, own_layer.before, ready, projected, plan.weights, None)

    def _make_merged_inputs(
        self,
        plan: LayerPlan,
        own_layer: OwnLayer,
        others: Mapping[str, list[Tensor]],
        received: Mapping[Kind, list[Tensor]],
    ) -> LayerInputs:
        """Return the inputs of a layer that takes all of its relations at once."""
        sources = {
            name: join_parts([rows, *others[name]]) for name, rows in own_layer.ready.items()
        }
        more = {}
        for name, ends in plan.more.items():
            sums = torch.cat(received[Sums(name)])
            zeros = sums.new_zeros(plan.blocks.destinations[name], *sums.shape[1:])
            more[name] = zeros.index_add(0, ends, sums)
        if not more:
            # No sums came, but every rank must send gradients back: empty parts tie them in.
            name, rows = next(iter(sources.items()))
            empty_parts = [
                part.reshape(0, *rows.shape[1:])
                for kind, parts in received.items()
                if not isinstance(kind, str)
                for part in parts
            ]
            sources[name] = join_parts([rows, *empty_parts])
        return LayerInputs(plan.blocks, own_layer.before, sources, None, plan.weights, more or None)
