"""One rank's forward pass over a graph of several node types, together with the others: every
node's layer is computed by its owner (design.md, "cooperative")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from hopper.cluster import Cluster
from hopper.graph.block import TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler
from hopper.models.merged import merge_relations
from hopper.models.relational import HGNN, RelationLayer
from hopper.ops import weighted_sum
from hopper.partials.exchange import RowExchange
from hopper.partials.typed_plan import SumsIn, SumsOut, TypedLayerPlan, TypedPlan
from hopper.partials.typed_planner import TypedPlanner
from hopper.partition.placement import Placement
from hopper.run_log import RunLog

_SUMS: Final = "sums for others"


def make_typed_planner(
    model: HGNN,
    sampler: NeighborSampler,
    placement: Placement,
    channel: Cluster,
    travels_as: torch.dtype,
) -> TypedPlanner:
    """What plans the passes of a model.

    Parameters
    ----------
    channel: what plans are told over.
    travels_as: dtype of rows on their way.
    """
    parameter = next(model.parameters())
    return TypedPlanner(
        sampler,
        placement,
        channel,
        [model.relation_layer(index) for index in range(len(model.layers))],
        model.hidden,
        travels_as.itemsize,
        parameter.dtype,
    )


class TypedForward:
    """Carries plans out.

    Parameters
    ----------
    travels_as: dtype of rows on their way.
    """

    def __init__(self, cluster: Cluster, log: RunLog, model: HGNN, travels_as: torch.dtype) -> None:
        self._cluster = cluster
        self._log = log
        self.model = model
        self._travels_as = travels_as

    def logits(self, plan: TypedPlan, first: Mapping[str, Tensor], where: str) -> Tensor:
        """[roots, out]: of this rank's roots; every rank has to call it.

        Parameters
        ----------
        first: by type, [n, hidden], the projected input rows of ``plan.nodes``.
        where: names the moment in errors.
        """
        h = dict(first)
        for index, layer in enumerate(plan.layers):
            h = self._layer(index, layer, h, f"{where}, layer {index}")
        out: Tensor = self.model.head(h[self.model.target])
        return out

    def _layer(
        self, index: int, plan: TypedLayerPlan, h_own: dict[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """By type, [destinations, width]: the new rows of this rank's destinations.

        Parameters
        ----------
        h_own: by type, [own, width], this rank's rows of the layer before.
        """
        log, model, layer = self._log, self.model, self.model.relation_layer(index)
        with log.stage("compute", operation="project", layer=index):
            ready = {each: model.drop(index, plan.own[each], rows) for each, rows in h_own.items()}
            side_by_side = torch.cat([ready[each] for each in sorted(ready)])
            sent = side_by_side.index_select(0, plan.chosen)
        received = self._exchange(sent, plan.lengths, plan.counts, f"exchanging rows, {where}")
        more = weights = None
        if plan.sums_out is not None and plan.sums_in is not None:
            more = self._sums(layer, plan.sums_out, plan.sums_in, plan.blocks, ready, where)
            weights = plan.sums_in.weights
        with log.stage("compute", operation="aggregate", layer=index):
            sources = {
                each: torch.cat((rows, received.index_select(0, plan.arrived[each])))
                for each, rows in ready.items()
            }
            return layer(plan.blocks, sources, weights=weights, more=more)

    def _sums(
        self,
        layer: RelationLayer,
        sums_out: SumsOut,
        sums_in: SumsIn,
        blocks: TypedBlocks,
        ready: Mapping[str, Tensor],
        where: str,
    ) -> dict[str, Tensor]:
        """By type, [destinations, ...]: what others have added up for this rank's destinations."""
        with self._log.stage("compute", operation="add up for others"):
            some = next(iter(ready.values()))
            if sums_out.blocks and layer.merges():
                total = _all_at_once(layer, sums_out, ready)
            else:
                total = some.new_zeros(sum(sums_out.lengths), *layer.nothing)
                for relation, block in sums_out.blocks.items():
                    projected = layer.aggregation(relation).project(ready[relation.src])
                    total = total + weighted_sum(block, projected, sums_out.weights[relation])
            if not sums_out.blocks:
                # Gradients come back to every rank, with something to add up or without.
                total = total + some[:0].sum()
        received = self._exchange(
            total, sums_out.lengths, sums_in.counts, f"exchanging partial sums, {where}"
        )
        found = {}
        for each in layer.types:
            rows, ends = sums_in.places[each]
            nothing = received.new_zeros(blocks.destinations[each], *layer.nothing)
            found[each] = nothing.index_add(0, ends, received.index_select(0, rows))
        return found

    def _exchange(
        self, sent: Tensor, lengths: list[int], counts: list[int], operation: str
    ) -> Tensor:
        """Rows from all ranks, rounded on their way if that is asked for."""
        rounded = sent.to(self._travels_as)
        exchange = RowExchange(self._cluster, self._log, rounded, lengths, counts, operation)
        return exchange.finish().to(sent.dtype)


def _all_at_once(layer: RelationLayer, sums_out: SumsOut, ready: Mapping[str, Tensor]) -> Tensor:
    """[sums, ...]: what every relation adds to the sums for others."""
    # All relations end in the same sums, so these are their destinations.
    named = {each: Relation(each.src, f"{each.rel}/{each.dst}", _SUMS) for each in sums_out.blocks}
    hop = TypedBlocks(
        blocks={named[each]: block for each, block in sums_out.blocks.items()},
        sources={each: rows.shape[0] for each, rows in ready.items()},
        destinations={_SUMS: sum(sums_out.lengths)},
        original={},
    )
    merged = merge_relations(hop, list(named.values()), (_SUMS,))
    weights = {named[each]: own for each, own in sums_out.weights.items()}
    return layer.merged(merged, list(named), ready, {}, weights)
