"""What is made of the roots of one type, where their relations are divided over servers (Heta,
section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hopper.cluster import Cluster
from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.hetero.root_shares import RootPlan, RootShares, Route
from hopper.hetero.rooted import of_roots, roots_of
from hopper.models.merged import merge_relations
from hopper.models.relational import HGNN, RelationLayer
from hopper.partials import RowExchange
from hopper.run_log import RunLog


class RootLayers:
    """What a rank makes of the roots of one type in a layer, together with the others.

    Attributes
    ----------
    shares: the division of these roots.
    layers: how many layers, the last ones, make rows of them.
    """

    def __init__(
        self, cluster: Cluster, log: RunLog, model: HGNN, node_type: str, shares: RootShares
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._type = node_type
        self.shares = shares
        self._group = shares.group_of(cluster.rank)
        layers = model.root_layers(node_type)
        self.layers = len(layers)
        self._reads = any(each.aggregations_read(node_type) for each in layers)
        """whether aggregations of the roots read them, so that who aggregates needs their rows"""
        self._divided = sorted(
            {
                each
                for relations, (_, parts) in zip(shares.relations, shares.parts, strict=True)
                if parts > 1
                for each in relations
            }
        )
        self._plan: tuple[int, RootPlan] | None = None

    def plan(self, count: int) -> RootPlan:
        """This rank's part of a batch of ``count`` roots."""
        if self._plan is None or self._plan[0] != count:
            made = self.shares.plan(
                self._cluster.rank, count, reads=self._reads, device=self._cluster.device
            )
            self._plan = count, made
        return self._plan[1]

    def finish(
        self,
        layer: RelationLayer,
        under_way: RowExchange | None,
        own: Tensor,
        plan: RootPlan,
        where: str,
        *,
        is_last: bool,
    ) -> tuple[Tensor, Tensor]:
        """New rows of the roots that this rank finishes, or, where other layers follow, of those
        that it reads; and a zero that depends on all that was received."""
        rows = own.index_select(0, plan.finishing_in_rows)
        if under_way is None:
            combined = rows.new_zeros(len(rows), *layer.nothing)
            return layer.update(self._type)(rows, combined), rows.new_zeros(())
        combined, tie = self._combined(layer, under_way, plan)
        rows = layer.update(self._type)(rows, combined)
        if self._reads and not is_last:
            rows, received = self._handed_out(rows, plan, where)
            tie = tie + received
        return rows, tie

    def send_partials(
        self,
        layer: RelationLayer,
        hop: TypedBlocks,
        h: Mapping[str, Tensor],
        own: Tensor,
        plan: RootPlan,
        where: str,
    ) -> RowExchange | None:
        """Begin to exchange the partials of root relations with whoever finishes the roots; None
        where there are none."""
        if not self.shares.relations[0]:
            return None
        apart = layer.combination.algebra == "other"
        with self._log.stage("compute", operation="root relations"):
            if plan.mine_in_rows is None:
                h_dst = own.new_empty(len(plan.mine), 0)
            else:
                h_dst = own.index_select(0, plan.mine_in_rows)
            if self._group is None:
                partials = self._partials_of_nothing(layer, hop, own[:0])
            else:
                partials = self._partials(self._group, layer, hop, h, h_dst)
            merged = self._side_by_side(partials) if apart else layer.combination.merge(partials)
            sent = self._as_sent(layer, merged).index_select(0, plan.partials.chosen)
        return self._exchange(sent, plan.partials, f"exchanging partials, {where}")

    def _combined(
        self, layer: RelationLayer, under_way: RowExchange, plan: RootPlan
    ) -> tuple[Tensor, Tensor]:
        """[f, ...]: AGG_all over all servers' partials of the roots that this rank finishes."""
        received = under_way.finish()
        with self._log.stage("compute", operation="combine"):
            groups = [received.index_select(0, order) for order in plan.by_group]
            is_other = layer.combination.algebra == "other"
            whole = self._in_order(layer, groups) if is_other else self._whole(layer, groups)
            return layer.combination(whole), received[:0].sum()

    def _partials(
        self,
        group: int,
        layer: RelationLayer,
        hop: TypedBlocks,
        h: Mapping[str, Tensor],
        h_dst: Tensor,
    ) -> list[Tensor]:
        """[m, ...] of every relation of the group, or of the part of one that it has; one for all
        where the layer aggregates them at once."""
        place, parts = self.shares.parts[group]
        relations, roots = self.shares.relations[group], roots_of(self._type)
        if parts == 1 and layer.merges():
            merged = merge_relations(hop, [of_roots(each) for each in relations], (roots,))
            return [layer.merged(merged, relations, h, {roots: h_dst})]
        read = [(each, hop.blocks[of_roots(each)], h[each.src], h_dst) for each in relations]
        if parts == 1:
            return [layer.partial(*own) for own in read]
        return [layer.part(*own, place) for own in read]

    def _partials_of_nothing(
        self, layer: RelationLayer, hop: TypedBlocks, nobody: Tensor
    ) -> list[Tensor]:
        """[0, ...]: what a rank sends whose server has no relation into the roots, since all take
        part in exchanges, and in their way back.

        Parameters
        ----------
        nobody: [0, in], which gradients go back to.
        """
        relation = self.shares.relations[0][0]
        none = torch.empty(0, dtype=torch.int64, device=nobody.device)
        key = next(iter(hop.nodes.values())).iteration_key
        src, dst = (Nodes(each, none, none, key) for each in (relation.src, relation.dst))
        block = Block(0, 0, none.new_zeros(1), none, relation, none, src, dst)
        block.edge_features = nobody.new_empty(0, layer.aggregation(relation).edge_dim)
        return [layer.partial(relation, block, nobody, nobody)]

    def _as_sent(self, layer: RelationLayer, rows: Tensor) -> Tensor:
        """Rows as wide as any group's, where parts are wider than what they are parts of."""
        widths = self._part_widths(layer)
        if not widths:
            return rows
        return functional.pad(rows, (0, max(*widths, *layer.nothing) - rows.shape[1]))

    def _part_widths(self, layer: RelationLayer) -> list[int]:
        """Of the relations that are divided, where it is another than a whole relation's."""
        widths = [layer.aggregation(each).part_width() for each in self._divided]
        return [width for width in widths if width is not None]

    def _whole(self, layer: RelationLayer, groups: Sequence[Tensor]) -> list[Tensor]:
        """Partials of whole relations, from those of groups."""
        widths = self._part_widths(layer)
        found: list[Tensor] = []
        parts_of: dict[Relation, list[Tensor]] = {}
        for relations, (_, parts), rows in zip(
            self.shares.relations, self.shares.parts, groups, strict=True
        ):
            if parts == 1:
                found.append(rows[:, : layer.nothing[0]] if widths else rows)
                continue
            if widths:
                rows = rows[:, : layer.aggregation(relations[0]).part_width() or layer.nothing[0]]
            parts_of.setdefault(relations[0], []).append(rows)
        return [*found, *(layer.joined(each, rows) for each, rows in parts_of.items())]

    def _side_by_side(self, partials: Sequence[Tensor]) -> Tensor:
        """[m, relations, ...]: as many as the group with the most relations has."""
        most = max(len(relations) for relations in self.shares.relations)
        return torch.stack(
            [*partials, *[torch.zeros_like(partials[0])] * (most - len(partials))], 1
        )

    def _in_order(self, layer: RelationLayer, groups: Sequence[Tensor]) -> list[Tensor]:
        """Every relation's partials, in canonical order, from those of groups side by side."""
        found: dict[Relation, list[Tensor]] = {}
        for relations, rows in zip(self.shares.relations, groups, strict=True):
            for place, relation in enumerate(relations):
                found.setdefault(relation, []).append(rows[:, place])
        return [
            rows[0] if len(rows) == 1 else layer.joined(each, rows)
            for each, rows in sorted(found.items())
        ]

    def _handed_out(self, finished: Tensor, plan: RootPlan, where: str) -> tuple[Tensor, Tensor]:
        """[k, ...]: finished rows, from whoever finished them."""
        sent = finished.index_select(0, plan.finished.chosen)
        received = self._exchange(
            sent, plan.finished, f"handing out finished rows, {where}"
        ).finish()
        return received.index_select(0, plan.rows_in), received[:0].sum()

    def _exchange(self, sent: Tensor, route: Route, operation: str) -> RowExchange:
        return RowExchange(self._cluster, self._log, sent, route.lengths, route.counts, operation)
