"""A rank's forward pass, together with the others: every node's layer is computed by its owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hopper.cluster import Cluster
from hopper.graph.schema import Relation
from hopper.models.gnn import expect_own
from hopper.models.merged import merge_patterns
from hopper.ops import in_full, weighted_sum
from hopper.partials.exchange import KindsExchange
from hopper.partials.plan import IterationPlan, LayerPlan, Outgoing
from hopper.partials.stack import LayerInputs, Stack
from hopper.partials.wire import Kind, Sums, Wires
from hopper.run_log import RunLog

Rows = Mapping[str, Tensor]
"""by node type"""
Projected = Mapping[Kind, Tensor]
"""by relation"""


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

    def logits(self, plan: IterationPlan, inputs: Rows, where: str) -> Tensor:
        """[roots, out]: of this rank's roots; every rank has to call it.

        Parameters
        ----------
        inputs: by type, [n, dim], the input rows of ``plan.nodes``; a type without any may be
            missing.
        where: names the moment in errors.
        """
        some = next(self._stack.model.parameters())
        whole = {
            name: inputs[name] if name in inputs else some.new_empty(0, width)
            for name, width in self._stack.widths.items()
        }
        rows = {name: self._stack.enter(name, x) for name, x in whole.items()}
        for index, layer in enumerate(plan.layers):
            rows = self._layer(index, layer, rows, whole, f"{where}, layer {index}")
        return self._stack.logits(rows)

    def _layer(
        self, index: int, plan: LayerPlan, before: Rows, raw: Rows, where: str
    ) -> dict[str, Tensor]:
        """By type, [destinations, width]: the new rows of this rank's destinations.

        Parameters
        ----------
        before: by type, [own, width], this rank's rows of the layer before.
        raw: by type, input rows.
        """
        log, stack, wires = self._log, self._stack, self._wires[index]
        with log.stage("compute", operation="project", layer=index):
            ready = {
                name: stack.prepare(index, plan.own[name], rows) for name, rows in before.items()
            }
            for each, own in stack.layers[index].aggregations.items():
                expect_own(own, ready[each.src], plan.blocks.destinations[each.dst])
            made: dict[Kind, Tensor] = {
                each: in_full(own.project(ready[each.src]))
                for each, own in stack.layers[index].aggregations.items()
                if each in wires.forms and not wires.merged
            }
            going = self._select(index, plan, ready, made, raw)
        came = self._exchange(plan, wires, going, ready, f"exchanging rows, {where}")
        with log.stage("compute", operation="aggregate", layer=index):
            given = self._inputs(index, plan, before, ready, made, came)
            return stack.new_rows(index, given)

    def _select(
        self, index: int, plan: LayerPlan, ready: Rows, made: Projected, raw: Rows
    ) -> dict[Kind, Tensor]:
        """By kind, [n, ...]: what goes out."""
        wires, going = self._wires[index], {}
        for kind, out in plan.outgoing.items():
            if isinstance(kind, Sums):
                continue
            rows: Mapping[Any, Tensor] = raw if kind in wires.raw else {**ready, **made}
            going[kind] = rows[kind].index_select(0, out.rows)
        return going | self._add_up(index, plan, ready, made)

    def _add_up(
        self, index: int, plan: LayerPlan, ready: Rows, made: Projected
    ) -> dict[Kind, Tensor]:
        """By kind, [n, ...]: the partial sums that go out."""
        wires, some = self._wires[index], next(iter(ready.values()))
        aggregations = self._stack.layers[index].aggregations
        wanted = {kind: out for kind, out in plan.outgoing.items() if isinstance(kind, Sums)}
        found: dict[Kind, Tensor] = {
            kind: some.new_zeros(sum(out.lengths), *wires.forms[kind].shape)
            for kind, out in wanted.items()
        }
        if wires.merged:
            return found | self._add_up_at_once(index, wanted, ready)
        for kind, out in wanted.items():
            for place, (relation, (block, weights)) in enumerate(out.sums.items()):
                rows = made[relation] if relation in made else ready[relation.src]
                if relation not in made and kind.node_type not in wires.added_as_read:
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

    def _exchange(
        self,
        plan: LayerPlan,
        wires: Wires,
        going: Mapping[Kind, Tensor],
        ready: Rows,
        operation: str,
    ) -> dict[Kind, list[Tensor]]:
        """By kind, the rows that come, by rank."""
        if self._cluster.world == 1:
            return {kind: [] for kind in going}
        under_way = []
        for has_gradient in (False, True):
            kinds = wires.kinds(has_gradient=has_gradient)
            if kinds:
                sent = {kind: going[kind] for kind in kinds}
                if has_gradient and not any(rows.requires_grad for rows in sent.values()):
                    # Gradients come back to every rank, with something to send or without.
                    sent[kinds[0]] = sent[kinds[0]] + sum(rows[:0].sum() for rows in ready.values())
                lengths = [plan.outgoing[kind].lengths for kind in kinds]
                counts = [plan.counts[kind] for kind in kinds]
                under_way.append(
                    KindsExchange(
                        *(self._cluster, self._log, sent, lengths, counts),
                        *(self._travels_as, operation),
                    )
                )
        came: dict[Kind, list[Tensor]] = {}
        for each in under_way:
            came |= each.finish()
        return came

    def _inputs(
        self,
        index: int,
        plan: LayerPlan,
        before: Rows,
        ready: Rows,
        made: Projected,
        came: Mapping[Kind, list[Tensor]],
    ) -> LayerInputs:
        """What a layer is computed from, once all of it has come."""
        stack, wires = self._stack, self._wires[index]
        others = {name: came.get(name, []) for name in ready}
        for name in wires.raw if self._cluster.world > 1 else ():
            entered = stack.enter(name, torch.cat(others[name]))
            others[name] = [stack.prepare(index, plan.raw[name], entered)]
        if wires.merged:
            return self._merged_inputs(index, plan, before, ready, others, came)
        projected: dict[Relation, Tensor] = {}
        for each, own in stack.layers[index].aggregations.items():
            rows = others[each.src]
            # Sums over all relations into a type are among the sources of the first of them.
            is_first = each.dst not in {known.dst for known in projected}
            sums = came.get(Sums(each.dst), []) if is_first else []
            if each.dst in wires.added_as_read:
                rows, sums = [*rows, *sums], []
            if each not in made:
                parts = [in_full(own.project(_cat([ready[each.src], *rows])))]
            else:
                parts = [made[each], *([in_full(own.project(_cat(rows)))] if rows else [])]
            projected[each] = _cat([*parts, *came.get(each, []), *sums])
        return LayerInputs(plan.blocks, before, ready, projected, plan.weights, None)

    def _merged_inputs(
        self,
        index: int,
        plan: LayerPlan,
        before: Rows,
        ready: Rows,
        others: Mapping[str, list[Tensor]],
        came: Mapping[Kind, list[Tensor]],
    ) -> LayerInputs:
        """Those of a layer that takes all of its relations at once."""
        sources = {name: _cat([rows, *others[name]]) for name, rows in ready.items()}
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
            sources[name] = _cat([rows, *(part.reshape(0, *rows.shape[1:]) for part in apart)])
        return LayerInputs(plan.blocks, before, sources, None, plan.weights, more or None)


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
