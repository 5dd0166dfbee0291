"""A rank's forward pass, together with the others: every node's layer is computed by its owner."""

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
    """Carries plans out.

    Parameters
    ----------
    wires: what the plans were made for.
    travels_as: dtype of rows on their way.
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
        """By type, [roots, width]: the last layer's rows of this rank's roots; every rank has to
        call it.

        Parameters
        ----------
        inputs: by type that the model reads, [n, dim], the input rows of ``plan.nodes``; the last
            may still be waited for when they are read.
        others: by type whose input rows travel, those that came of other ranks, as of
            :func:`exchange_input_rows`.
        where: names the moment in errors.
        """
        rows, raw = inputs, others
        for index, layer in enumerate(plan.layers):
            rows = self._layer(index, layer, rows, raw, f"{where}, layer {index}")
            # Only the first layer reads input rows.
            raw = {}
        return rows

    def _layer(
        self, index: int, plan: LayerPlan, rows: Rows, raw: Mapping[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """By type, [destinations, width]: the new rows of this rank's destinations.

        Parameters
        ----------
        rows: by type, [own, width], this rank's rows of the layer before; input rows for the first.
        raw: by type, input rows of other ranks.
        """
        log, wires, operation = self._log, self._wires[index], f"exchanging rows, {where}"
        own = OwnLayer(self._stack, wires, index, plan, rows)
        constant, varying = (
            [kind for kind in wires.kinds(has_gradient=each) if kind not in wires.raw]
            for each in (False, True)
        )
        with log.stage("compute", operation="project", layer=index):
            awaited = own.make_awaited()
            known: dict[Any, Tensor] = {**awaited.ready, **awaited.projected}
            going = [
                self._select(plan, kinds, known) | self._add_up(index, plan, kinds, awaited)
                for kinds in (constant, varying)
            ]
        # Every rank starts the same exchanges in the same order.
        exchanges = [
            self._start(plan, going[0], (), operation),
            self._start(plan, going[1], awaited.ready.values(), operation),
        ]
        with log.stage("compute", operation="project", layer=index):
            # They are made while the others travel, and their gradients while theirs come back.
            own.make_rest()
        came: dict[Kind, list[Tensor]] = {name: [others] for name, others in raw.items()}
        for each in exchanges:
            came |= {} if each is None else each.finish()
        with log.stage("compute", operation="aggregate", layer=index):
            return self._stack.new_rows(index, self._inputs(index, plan, own, came))

    def _select(
        self, plan: LayerPlan, kinds: Sequence[Kind], rows: Mapping[Any, Tensor]
    ) -> dict[Kind, Tensor]:
        """By kind but sums, [n, ...]: the rows that go out."""
        if self._cluster.world == 1:
            return {}
        return {
            kind: rows[kind].index_select(0, plan.outgoing[kind].rows)
            for kind in kinds
            if not isinstance(kind, Sums)
        }

    def _add_up(
        self, index: int, plan: LayerPlan, kinds: Sequence[Kind], own: OwnRows
    ) -> dict[Kind, Tensor]:
        """By kind, [n, ...]: the partial sums that go out."""
        wanted = {kind: plan.outgoing[kind] for kind in kinds if isinstance(kind, Sums)}
        if self._cluster.world == 1 or not wanted:
            return {}
        # Sums are in float32 at least, also where none goes out.
        wires, some = self._wires[index], in_full(next(iter(own.ready.values()))[:0])
        aggregations = self._stack.layers[index].aggregations
        found: dict[Kind, Tensor] = {
            kind: some.new_zeros(sum(out.lengths), *wires.forms[kind].shape)
            for kind, out in wanted.items()
        }
        if wires.merged:
            return found | self._add_up_at_once(index, wanted, own.ready)
        for kind, out in wanted.items():
            for place, (relation, (block, weights)) in enumerate(out.sums.items()):
                is_made = relation in own.projected
                rows = own.projected[relation] if is_made else own.ready[relation.src]
                if not is_made and kind.node_type not in wires.added_as_read:
                    rows = in_full(aggregations[relation].project(rows))
                added = weighted_sum(block, rows, weights)
                found[kind] = added if place == 0 else found[kind] + added
        return found

    def _add_up_at_once(
        self, index: int, wanted: Mapping[Sums, Outgoing], ready: Rows
    ) -> dict[Kind, Tensor]:
        """The sums of a layer that takes all of its relations at once, of types that have any."""
        sums = {each: own for out in wanted.values() for each, own in out.sums.items()}
        if not sums:
            return {}
        relations = sorted(sums)
        merged = merge_patterns(
            {each: sums[each][0] for each in relations},
            {name: len(rows) for name, rows in ready.items()},
            {kind.node_type: sum(out.lengths) for kind, out in wanted.items()},
            sorted({each.dst for each in relations}),
        )
        weights = {each: own for each, (_, own) in sums.items()}
        total = self._stack.add_up(index, merged, relations, ready, weights)
        return {Sums(name): total[place] for name, place in merged.places.items()}

    def _start(
        self,
        plan: LayerPlan,
        sent: Mapping[Kind, Tensor],
        read: Iterable[Tensor],
        operation: str,
    ) -> KindsExchange[Kind] | None:
        """Begin to exchange rows; None where there are none to be exchanged.

        Parameters
        ----------
        sent: by kind, what goes out. read: rows that it is made of, where gradients come back: they
            come to every rank, with something to send or without.
        """
        if not sent:
            return None
        rows = list(read)
        if rows and not any(each.requires_grad for each in sent.values()):
            first, own = next(iter(sent.items()))
            # Rows that have none themselves may be projected by what has.
            tie = own.new_zeros((), requires_grad=torch.is_grad_enabled())
            sent = {**sent, first: own + sum((each[:0].sum() for each in rows), tie)}
        return KindsExchange(
            *(self._cluster, self._log, sent),
            *([plan.outgoing[kind].lengths for kind in sent], [plan.counts[kind] for kind in sent]),
            *(self._travels_as, operation),
        )

    def _inputs(
        self, index: int, plan: LayerPlan, own: OwnLayer, came: Mapping[Kind, list[Tensor]]
    ) -> LayerInputs:
        """What a layer is computed from, once all of it has come."""
        stack, wires, ready = self._stack, self._wires[index], own.ready
        others = {name: came.get(name, []) for name in ready}
        for name in wires.raw if came else ():
            entered = stack.enter(name, join_parts(others[name]))
            others[name] = [stack.prepare(index, plan.raw[name], entered)]
        if wires.merged:
            return self._merged_inputs(index, plan, own, others, came)
        projected: dict[Relation, Tensor] = {}
        for each, aggregation in stack.layers[index].aggregations.items():
            rows = others[each.src]
            # Sums over all relations into a type are among the sources of the first of them.
            is_first = each.dst not in {known.dst for known in projected}
            sums = came.get(Sums(each.dst), []) if is_first else []
            if each.dst in wires.added_as_read:
                rows, sums = [*rows, *sums], []
            behind = [*came.get(each, []), *sums]
            if own.projects(each):
                read = [in_full(aggregation.project(join_parts(rows)))] if rows else []
                projected[each] = own.projected(each, [*read, *behind])
            else:
                read = [in_full(aggregation.project(join_parts([ready[each.src], *rows])))]
                projected[each] = join_parts([*read, *behind])
        return LayerInputs(plan.blocks, own.before, ready, projected, plan.weights, None)

    def _merged_inputs(
        self,
        index: int,
        plan: LayerPlan,
        own: OwnLayer,
        others: Mapping[str, list[Tensor]],
        came: Mapping[Kind, list[Tensor]],
    ) -> LayerInputs:
        """Those of a layer that takes all of its relations at once."""
        sources = {name: join_parts([rows, *others[name]]) for name, rows in own.ready.items()}
        more = {}
        for name, ends in plan.more.items():
            sums = torch.cat(came[Sums(name)])
            nothing = sums.new_zeros(plan.blocks.destinations[name], *sums.shape[1:])
            more[name] = nothing.index_add(0, ends, sums)
        if not more:
            # Their gradients go back all the same.
            name, rows = next(iter(sources.items()))
            apart = [
                part for kind, all in came.items() if not isinstance(kind, str) for part in all
            ]
            apart = [part.reshape(0, *rows.shape[1:]) for part in apart]
            sources[name] = join_parts([rows, *apart])
        return LayerInputs(plan.blocks, own.before, sources, None, plan.weights, more or None)
