"""A layer of a typed graph's model, which aggregates each relation, then combines the relations.

``h_v' = update(h_v, AGG_all({AGG_r({h_u : u in N_r(v)}) : r into v's type}))`` (Heta, eq. 1). AGG_r
is a :class:`hopper.models.layer.Layer` whose ``aggregate`` returns a relation's partial. AGG_all is
a :class:`Combination`, which declares how partials may be combined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation
from hopper.models.combination import Combination
from hopper.models.layer import Layer, SumLayer
from hopper.models.merged import MergedRelations, merge_relations
from hopper.ops import in_full

_Aggregation = TypeVar("_Aggregation", bound=Layer)


class Update(nn.Module):
    """Makes a node's new row from its combined row and its own, for one node type."""

    reads_destination: ClassVar[bool] = True
    """whether it reads ``h_dst``"""

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Return the new rows [num_dst, out].

        Parameters
        ----------
        h_dst: [num_dst, in], the destinations' rows of the previous layer.
        combined: [num_dst, ...], from AGG_all; zero if there is nothing to combine.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")


class RelationLayer(nn.Module):
    """One layer over several relations.

    Parameters
    ----------
    aggregations: AGG_r of every relation that the layer reads.
    combination: AGG_all, the same for every type.
    updates: the update of each type of destinations.
    nothing: the shape of a combined row, for types into which no relation of the layer leads.
    merge: whether :meth:`aggregate_merged` may compute one partial for all relations.
    """

    def __init__(
        self,
        aggregations: Mapping[Relation, Layer],
        combination: Combination,
        updates: Mapping[str, Update],
        nothing: Sequence[int],
        merge: bool = False,
    ) -> None:
        super().__init__()
        self._merge = merge
        self.relations = tuple(sorted(aggregations))
        self.aggregations = nn.ModuleList(aggregations[relation] for relation in self.relations)
        self.combination = combination
        self.types = tuple(sorted(updates))
        self.updates = nn.ModuleList(updates[node_type] for node_type in self.types)
        self.nothing = tuple(nothing)
        self._place = {relation: place for place, relation in enumerate(self.relations)}
        self._type_place = {node_type: place for place, node_type in enumerate(self.types)}

    def merges(self) -> bool:
        """Return whether the layer computes one partial for all relations, by
        :meth:`aggregate_merged`."""
        return self._merge

    def aggregate_merged(
        self,
        merged: MergedRelations,
        relations: Sequence[Relation],
        h: Mapping[str, Tensor],
        h_dst: Mapping[str, Tensor],
        weights: Mapping[Relation, Tensor] | None = None,
    ) -> Tensor:
        """Compute one partial for all relations, [destinations of all types, ...].

        Parameters
        ----------
        merged: the edges of the relations.
        relations: the layer's names of the relations, in the order of ``merged.relations``.
        h, h_dst: by type in ``merged``, the rows [num_src, in] and [num_dst, in].
        weights: as in :meth:`forward`.
        """
        raise NotImplementedError(f"{type(self).__name__} aggregates relation by relation")

    def rename(self, relations: Mapping[Relation, Relation], types: Mapping[str, str]) -> None:
        """Give relations and types other names.

        Parameters
        ----------
        relations, types: by new name, the old name whose parameters it uses. Several new names may
            use the same.
        """
        self._place = {new: self._place[old] for new, old in relations.items()}
        self._type_place = {new: self._type_place[old] for new, old in types.items()}
        self.relations, self.types = tuple(sorted(relations)), tuple(sorted(types))

    def aggregation(self, relation: Relation) -> Layer:
        """Return AGG_r of a relation."""
        aggregation = self.aggregations[self._place[relation]]
        assert isinstance(aggregation, Layer)
        return aggregation

    def aggregations_of(
        self, aggregation_class: type[_Aggregation], relations: Sequence[Relation]
    ) -> list[_Aggregation]:
        """Return AGG_r of relations, all of one class."""
        aggregations = []
        for relation in relations:
            aggregation = self.aggregation(relation)
            assert isinstance(aggregation, aggregation_class)
            aggregations.append(aggregation)
        return aggregations

    def update(self, node_type: str) -> Update:
        """Return the update of a type."""
        update = self.updates[self._type_place[node_type]]
        assert isinstance(update, Update)
        return update

    def reads_destination(self, node_type: str) -> bool:
        """Return whether new rows of a type depend on its nodes' own rows of the previous layer."""
        return self.update(node_type).reads_destination or self.aggregations_read(node_type)

    def aggregations_read(self, node_type: str) -> bool:
        """Return whether an AGG_r into a type reads its nodes' own rows."""
        into = (self.aggregation(r) for r in self.relations if r.dst == node_type)
        return any(aggregation.reads_destination for aggregation in into)

    def forward(
        self,
        blocks: TypedBlocks,
        h: Mapping[str, Tensor],
        types: Sequence[str] | None = None,
        weights: Mapping[Relation, Tensor] | None = None,
        more: Mapping[str, Tensor] | None = None,
        projected: Mapping[Relation, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return the new rows [num_dst, out] of destinations, by type.

        Parameters
        ----------
        blocks: the blocks of all relations into types that have destinations.
        h: by type, the rows [num_src, in] of sources, destinations first.
        types: the types of destinations; None = all types of the layer.
        weights: by relation, the weights [edges] of a layer that sums, if blocks lack some edges.
        more: by type, the sums [num_dst, ...] over the edges that blocks lack, if the layer merges.
        projected: by relation, rows [num_src, ...] that are projected already. ``h`` is then read
            only for destinations, and relations are aggregated one by one.
        """
        types = self.types if types is None else types
        if self.merges() and projected is None:
            return self._all_at_once(blocks, h, types, weights, more)
        out = {}
        for node_type in types:
            count = blocks.destinations[node_type]
            h_dst = h[node_type][:count]
            partials = [
                self.partial(relation, blocks.blocks[relation], h[relation.src], h_dst)
                if projected is None
                else self.combine(
                    relation, blocks.blocks[relation], projected[relation], h_dst, weights
                )
                for relation in self.relations
                if relation.dst == node_type and (count or relation in blocks.blocks)
            ]
            if partials:
                combined = self.combination(partials)
            else:
                combined = h_dst.new_zeros(count, *self.nothing)
            out[node_type] = in_full(self.update(node_type)(h_dst, combined))
        return out

    def _all_at_once(
        self,
        blocks: TypedBlocks,
        h: Mapping[str, Tensor],
        types: Sequence[str],
        weights: Mapping[Relation, Tensor] | None,
        more: Mapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        """Compute :meth:`forward` with one pattern of edges for all relations."""
        relations = [r for r in self.relations if r.dst in types and r in blocks.blocks]
        h_dst = {name: h[name][: blocks.destinations[name]] for name in types}
        merged_partials: dict[str, Tensor] = {}
        if relations:
            merged = merge_relations(blocks, relations, types)
            partial = self.aggregate_merged(merged, relations, h, h_dst, weights)
            merged_partials = {name: partial[place] for name, place in merged.places.items()}
        out = {}
        for name, rows in h_dst.items():
            sources = (merged_partials, more)
            partials = [by_type[name] for by_type in sources if by_type and name in by_type]
            combined = (
                self.combination(partials) if partials else rows.new_zeros(len(rows), *self.nothing)
            )
            out[name] = in_full(self.update(name)(rows, combined))
        return out

    def partial(self, relation: Relation, block: Block, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """Compute a relation's partial [num_dst, ...] from rows.

        Parameters
        ----------
        h_src, h_dst: the rows [num_src, in] and [num_dst, in].
        """
        z_src = self.aggregation(relation).project(h_src)
        return self.combine(relation, block, z_src, h_dst)

    def combine(
        self,
        relation: Relation,
        block: Block,
        z_src: Tensor,
        h_dst: Tensor,
        weights: Mapping[Relation, Tensor] | None = None,
    ) -> Tensor:
        """Compute a relation's partial [num_dst, ...] from projected rows.

        Parameters
        ----------
        z_src: [num_src, ...], projected rows.
        weights: as in :meth:`forward`.
        """
        aggregation = self.aggregation(relation)
        if weights is None:
            return self.combination.partial(block, aggregation.aggregate(block, z_src, h_dst))
        assert isinstance(aggregation, SumLayer)
        return aggregation.combine(block, z_src, weights[relation], h_dst)

    def part(
        self, relation: Relation, block: Block, h_src: Tensor, h_dst: Tensor, place: int
    ) -> Tensor:
        """Compute what one part of a relation's edges contributes, [num_dst, ...].

        :meth:`join` makes a partial of all parts.

        Parameters
        ----------
        place: the number of the part.
        """
        aggregation = self.aggregation(relation)
        aggregated = aggregation.part(block, aggregation.project(h_src), h_dst)
        return self.combination.part(block, aggregated, place)

    def join(self, relation: Relation, parts: Sequence[Tensor]) -> Tensor:
        """Join all parts of a relation's edges to its partial [num_dst, ...]."""
        return self.combination.join(self.aggregation(relation), parts)
