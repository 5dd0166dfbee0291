"""Layers of the roots of one type, where their relations are divided over servers.

Heta, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hopper.cluster.cluster import Cluster
from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.hetero.root_shares import RootPlan, RootShares, Route
from hopper.hetero.rooted import root_name, root_relation
from hopper.models.relation_layer import MergedLayer, RelationLayer
from hopper.models.relational import HGNN
from hopper.partials import RowExchange
from hopper.timing.run_log import RunLog


class RootLayers:
    """Computes the rows of the roots of one type in a layer, together with the other ranks.
    ``shares`` divide these roots over ranks; ``layers`` of the last layers compute rows of roots.
    """

    def __init__(
        self, cluster: Cluster, log: RunLog, model: HGNN, node_type: str, shares: RootShares
    ) -> None:
        self._cluster, self._log, self._type, self.shares = cluster, log, node_type, shares
        self._group = shares.group_of(cluster.rank)
        own = () if self._group is None else shares.relations[self._group]
        self._names = {root_relation(relation): relation for relation in own}
        """the relations that this rank aggregates, by their names in blocks"""
        layers = model.root_layers(node_type)
        self.layers = len(layers)
        self._reads = any(layer.aggregations_read(node_type) for layer in layers)
        """whether aggregations read the roots' own rows, which aggregating ranks then need"""
        groups = zip(shares.relations, shares.parts, strict=True)
        self._divided = sorted({names[0] for names, (_, parts) in groups if parts > 1})
        self._plan: tuple[int, RootPlan] | None = None

    def plan(self, count: int) -> RootPlan:
        """Return this rank's part of a batch of ``count`` roots."""
        if self._plan is None or self._plan[0] != count:
            plan = self.shares.plan(
                self._cluster.rank, count, reads=self._reads, device=self._cluster.device
            )
            self._plan = count, plan
        return self._plan[1]

    def lay_out(self, layer: RelationLayer, hop: TypedBlocks) -> None:
        """Prepare the edges of root relations, ahead of the pass of training that reads them."""
        if self._names and isinstance(layer, MergedLayer):
            layer.lay_out(hop, tuple(self._names), (root_name(self._type),))

    def finish(
        self,
        layer: RelationLayer,
        under_way: RowExchange | None,
        own_rows: Tensor,
        plan: RootPlan,
        where: str,
        *,
        is_last: bool,
    ) -> tuple[Tensor, Tensor]:
        """Combine partials, and compute new rows of roots: return those of the roots that this rank
        finishes, in the last layer, or else of those that it reads, and a zero that depends on all
        received rows."""
        rows = own_rows.index_select(0, plan.finishing_in_rows)
        if under_way is None:
            combined = rows.new_zeros(len(rows), *layer.nothing)
            return layer.update(self._type)(rows, combined), rows.new_zeros(())
        combined, tie = self._combine(layer, under_way, plan)
        rows = layer.update(self._type)(rows, combined)
        if self._reads and not is_last:
            rows, received = self._exchange_finished(rows, plan, where)
            tie = tie + received
        return rows, tie

    def send_partials(
        self,
        layer: RelationLayer,
        hop: TypedBlocks,
        h: Mapping[str, Tensor],
        own_rows: Tensor,
        plan: RootPlan,
        where: str,
    ) -> RowExchange | None:
        """Aggregate root relations, begin to send the partials to the finishing ranks, and return
        the exchange; None if there are no root relations."""
        if not self.shares.relations[0]:
            return None
        apart = layer.combination.algebra == "other"
        with self._log.stage("compute", operation="root relations"):
            if plan.mine_in_rows is None:
                h_dst = own_rows.new_empty(len(plan.mine), 0)
            else:
                h_dst = own_rows.index_select(0, plan.mine_in_rows)
            if self._group is None:
                partials = self._partials_of_nothing(layer, hop, own_rows[:0])
            else:
                partials = self._partials(self._group, layer, hop, h, h_dst)
            merged = self._stack(partials) if apart else layer.combination.merge(partials)
            sent = self._pad(layer, merged).index_select(0, plan.partials.chosen)
        return self._exchange(sent, plan.partials, f"exchanging partials, {where}")

    def _combine(
        self, layer: RelationLayer, under_way: RowExchange, plan: RootPlan
    ) -> tuple[Tensor, Tensor]:
        """Receive partials, and combine the relations of the roots that this rank finishes: return
        the rows [f, ...] (Heta's AGG_all), and a zero that depends on all received rows."""
        received = under_way.finish()
        with self._log.stage("compute", operation="combine"):
            groups = [received.index_select(0, order) for order in plan.by_group]
            apart = layer.combination.algebra == "other"
            join = self._sort_by_relation if apart else self._join_parts
            return layer.combination(join(layer, groups)), received[:0].sum()

    def _partials(
        self,
        group: int,
        layer: RelationLayer,
        hop: TypedBlocks,
        h: Mapping[str, Tensor],
        h_dst: Tensor,
    ) -> list[Tensor]:
        """Aggregate the relations of a group, or the part of a relation that it has: return
        partials [m, ...], one for each relation, or one for all if the layer merges relations."""
        place, parts = self.shares.parts[group]
        roots, part = root_name(self._type), None if parts == 1 else place
        return layer.partials(hop, self._names, h, {roots: h_dst}, part=part)[roots]

    def _partials_of_nothing(
        self, layer: RelationLayer, hop: TypedBlocks, nobody: Tensor
    ) -> list[Tensor]:
        """Return empty partials for a rank whose server has no relation into the roots. It must
        take part in exchanges and in their backward pass like any other rank, so these depend on
        the empty rows ``nobody``, [0, in]."""
        relation = self.shares.relations[0][0]
        none = torch.empty(0, dtype=torch.int64, device=nobody.device)
        key = next(iter(hop.nodes.values())).iteration_key
        src, dst = (Nodes(name, none, none, key) for name in (relation.src, relation.dst))
        block = Block(0, 0, none.new_zeros(1), none, relation, none, src, dst)
        block.edge_features = nobody.new_empty(0, layer.aggregation(relation).edge_dim)
        empty_hop = TypedBlocks({relation: block}, {relation.src: 0}, {relation.dst: 0}, {})
        h, h_dst = {relation.src: nobody}, {relation.dst: nobody}
        return layer.partials(empty_hop, {relation: relation}, h, h_dst)[relation.dst]

    def _pad(self, layer: RelationLayer, rows: Tensor) -> Tensor:
        """Pad rows to the width of the widest group, as partials of parts may be wider."""
        widths = self._part_widths(layer)
        if not widths:
            return rows
        return functional.pad(rows, (0, max(*widths, *layer.nothing) - rows.shape[1]))

    def _part_widths(self, layer: RelationLayer) -> list[int]:
        """Return the widths of partials of divided relations that differ from whole ones."""
        widths = [layer.aggregation(relation).part_width() for relation in self._divided]
        return [width for width in widths if width is not None]

    def _join_parts(self, layer: RelationLayer, groups: Sequence[Tensor]) -> list[Tensor]:
        """Join the partials of groups to partials of whole relations."""
        widths = self._part_widths(layer)
        whole: list[Tensor] = []
        parts_by_relation: dict[Relation, list[Tensor]] = {}
        for relations, (_, parts), rows in zip(
            self.shares.relations, self.shares.parts, groups, strict=True
        ):
            if parts == 1:
                whole.append(rows[:, : layer.nothing[0]] if widths else rows)
                continue
            if widths:
                rows = rows[:, : layer.aggregation(relations[0]).part_width() or layer.nothing[0]]
            parts_by_relation.setdefault(relations[0], []).append(rows)
        joined = (layer.join(relation, rows) for relation, rows in parts_by_relation.items())
        return [*whole, *joined]

    def _stack(self, partials: Sequence[Tensor]) -> Tensor:
        """Stack partials to [m, relations, ...], padded to the largest group's relations."""
        most = max(len(relations) for relations in self.shares.relations)
        return torch.stack(
            [*partials, *[torch.zeros_like(partials[0])] * (most - len(partials))], 1
        )

    def _sort_by_relation(self, layer: RelationLayer, groups: Sequence[Tensor]) -> list[Tensor]:
        """Return every relation's partial, in canonical order, from the stacks of groups."""
        by_relation: dict[Relation, list[Tensor]] = {}
        for relations, rows in zip(self.shares.relations, groups, strict=True):
            for index, relation in enumerate(relations):
                by_relation.setdefault(relation, []).append(rows[:, index])
        return [
            rows[0] if len(rows) == 1 else layer.join(relation, rows)
            for relation, rows in sorted(by_relation.items())
        ]

    def _exchange_finished(
        self, finished: Tensor, plan: RootPlan, where: str
    ) -> tuple[Tensor, Tensor]:
        """Exchange finished rows, and return those [k, ...] that this rank reads."""
        sent = finished.index_select(0, plan.finished.chosen)
        received = self._exchange(
            sent, plan.finished, f"handing out finished rows, {where}"
        ).finish()
        return received.index_select(0, plan.rows_in), received[:0].sum()

    def _exchange(self, sent: Tensor, route: Route, operation: str) -> RowExchange:
        return RowExchange(self._cluster, self._log, sent, route.lengths, route.counts, operation)
