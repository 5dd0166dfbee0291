"""A layer of a typed graph's model, which aggregates each relation, then combines the relations.

``h_v' = update(h_v, AGG_all({AGG_r({h_u : u in N_r(v)}) : r into v's type}))`` (Heta, eq. 1). AGG_r
is a :class:`hopper.models.layer.Layer`. AGG_all is a :class:`Combination`, which declares how
partials may be combined. :class:`RelationLayer` calls the ``aggregate`` of one AGG_r after the
other; :class:`MergedLayer` computes all relations at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from hopper.graph.block import Edges, TypedBlocks
from hopper.graph.schema import Relation
from hopper.models.combination import Combination
from hopper.models.gat import log_importance
from hopper.models.layer import AttentionLayer, Layer, SumLayer
from hopper.models.merged import MergedRelations, merge_relations
from hopper.models.typed_rows import TypedRows
from hopper.ops import in_full
from hopper.ops.csr import destinations_to_sources
from hopper.ops.grouped import lay_out_groups
from hopper.ops.groups import Groups

_Aggregation = TypeVar("_Aggregation", bound=Layer)


class Update(nn.Module):
    """Makes a node's new row from its combined row and its own, for one node type."""

    reads_destination: ClassVar[bool] = True
    """whether it reads ``h_dst``"""

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Return the new rows [num_dst, out].

        ``h_dst`` [num_dst, in] are the destinations' rows of the previous layer. ``combined``
        [num_dst, ...] comes from AGG_all, and is zero if there is nothing to combine.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    @classmethod
    def update_all(cls, updates: Sequence[Self], h_dst: TypedRows, combined: Tensor) -> Tensor:
        """Return the new rows of all types, [rows, out], in the order of ``h_dst``, given an update
        of this class for each type, and the combined rows of all types, [rows, ...]."""
        parts = zip(updates, h_dst.values(), combined.split([*h_dst.sizes.values()]), strict=True)
        return torch.cat([update(rows, of_type) for update, rows, of_type in parts])


class RelationLayer(nn.Module):
    """One layer over several relations.

    Parameters
    ----------
    aggregations: AGG_r of every relation that the layer reads.
    combination: AGG_all, the same for every type.
    updates: the update of each type of destinations.
    nothing: the shape of a combined row, for types into which no relation of the layer leads.
    """

    def __init__(
        self,
        aggregations: Mapping[Relation, Layer],
        combination: Combination,
        updates: Mapping[str, Update],
        nothing: Sequence[int],
    ) -> None:
        super().__init__()
        self.relations = tuple(sorted(aggregations))
        self.aggregations = nn.ModuleList(aggregations[relation] for relation in self.relations)
        self.combination = combination
        self.types = tuple(sorted(updates))
        self.updates = nn.ModuleList(updates[node_type] for node_type in self.types)
        self.nothing = tuple(nothing)
        self._place = {relation: place for place, relation in enumerate(self.relations)}
        self._type_place = {node_type: place for place, node_type in enumerate(self.types)}

    def rename(self, relations: Mapping[Relation, Relation], types: Mapping[str, str]) -> None:
        """Give relations and types other names: by new name, the old one whose parameters it uses.
        Several new names may use the same."""
        self._place = {new: self._place[old] for new, old in relations.items()}
        self._type_place = {new: self._type_place[old] for new, old in types.items()}
        self.relations, self.types = tuple(sorted(relations)), tuple(sorted(types))

    def relations_into(self, types: Sequence[str], blocks: TypedBlocks) -> list[Relation]:
        """Return the relations of a hop into some types, in canonical order."""
        return [r for r in self.relations if r.dst in types and r in blocks.blocks]

    def aggregation(self, relation: Relation) -> Layer:
        """Return AGG_r of a relation."""
        aggregation = self.aggregations[self._place[relation]]
        assert isinstance(aggregation, Layer)
        return aggregation

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
        self, blocks: TypedBlocks, h: Mapping[str, Tensor], types: Sequence[str] | None = None
    ) -> Mapping[str, Tensor]:
        """Return the new rows [num_dst, out] of destinations, by type.

        Parameters
        ----------
        blocks: the blocks of all relations into types that have destinations.
        h: by type, the rows [num_src, in] of sources, destinations first.
        types: the types of destinations; None = all types of the layer.
        """
        types = self.types if types is None else types
        h_dst = {name: h[name][: blocks.destinations[name]] for name in types}
        names = {r: r for r in self.relations_into(types, blocks)}
        return self.new_rows(h_dst, self.partials(blocks, names, h, h_dst))

    def new_rows(
        self, h_dst: Mapping[str, Tensor], partials: Mapping[str, Sequence[Tensor]]
    ) -> dict[str, Tensor]:
        """Combine the partials [num_dst, ...] of each type, of which there may be none, and update
        the rows [num_dst, in] of its destinations, to [num_dst, out]."""
        out = {}
        for name, rows in h_dst.items():
            if parts := partials.get(name):
                combined = self.combination(parts)
            else:
                combined = rows.new_zeros(len(rows), *self.nothing)
            out[name] = in_full(self.update(name)(rows, combined))
        return out

    def partials(
        self,
        blocks: TypedBlocks,
        names: Mapping[Relation, Relation],
        h: Mapping[str, Tensor],
        h_dst: Mapping[str, Tensor],
        *,
        weights: Mapping[Relation, Tensor] | None = None,
        projected: Mapping[Relation, Tensor] | None = None,
        part: int | None = None,
    ) -> dict[str, list[Tensor]]:
        """Compute the partials [num_dst, ...] of relations: by type, one for each relation into it,
        or one for all of them.

        Parameters
        ----------
        names: by relation of ``blocks`` to aggregate, in canonical order, the layer's name of it.
        h, h_dst: by type in ``blocks``, the rows [num_src, in] and [num_dst, in].
        weights: by relation, the weights [edges] of a layer that sums, if blocks lack some edges.
        projected: by relation, rows [num_src, ...] that are projected already, which are read
            instead of ``h``.
        part: the number of the part of all relations' edges that blocks have, where other servers
            have the others. What is returned then contributes to partials, and :meth:`join` makes
            a partial of all parts. None = blocks have all edges.
        """
        out: dict[str, list[Tensor]] = {}
        for relation, name in names.items():
            block, aggregation = blocks.blocks[relation], self.aggregation(name)
            if projected is None:
                z_src = aggregation.project(h[relation.src])
            else:
                z_src = projected[relation]
            rows = h_dst[relation.dst]
            if weights is not None:
                assert isinstance(aggregation, SumLayer)
                partial = aggregation.combine(block, z_src, weights[relation], rows)
            elif part is not None:
                partial = self.combination.part(block, aggregation.part(block, z_src, rows), part)
            else:
                partial = self.combination.partial(block, aggregation.aggregate(block, z_src, rows))
            out.setdefault(relation.dst, []).append(partial)
        return out

    def join(self, relation: Relation, parts: Sequence[Tensor]) -> Tensor:
        """Join all parts of a relation's edges to its partial [num_dst, ...]."""
        return self.combination.join(self.aggregation(relation), parts)


class MergedInputs(NamedTuple):
    """What a layer computes one partial of for all relations."""

    merged: MergedRelations
    """the edges of the relations"""
    relations: Sequence[Relation]
    """the layer's names of the relations, in the order of ``merged.relations``"""
    h: Mapping[Any, Tensor]
    """by type in ``merged``, the rows [num_src, in]; or by relation, the projected rows, if the
    relations are ``merged.apart``"""
    h_dst: Mapping[str, Tensor]
    """by type in ``merged``, the rows [num_dst, in]"""
    weights: Mapping[Relation, Tensor] | None = None
    """as in :meth:`RelationLayer.partials`"""
    is_part: bool = False
    """whether other servers have other edges of the same relations"""


class MergedLayer(RelationLayer, Generic[_Aggregation]):
    """A layer that computes one partial for all relations into a type (HiFuse, section 4.2).

    An AGG_r holds a relation's parameters. Nothing calls its ``aggregate``.
    """

    def forward(
        self, blocks: TypedBlocks, h: Mapping[str, Tensor], types: Sequence[str] | None = None
    ) -> Mapping[str, Tensor]:
        """Return the new rows of destinations, by type; see :meth:`RelationLayer.forward`.

        Given :class:`TypedRows`, all types are computed at once, and the result is of that kind.
        """
        types = self.types if types is None else types
        names = {r: r for r in self.relations_into(types, blocks)}
        if not isinstance(h, TypedRows) or not names:
            return super().forward(blocks, h, types)
        h_dst = h.destinations(blocks, types)
        merged = merge_relations(blocks, tuple(names), tuple(types))
        partial = self.aggregate_merged(MergedInputs(merged, tuple(names), h, h_dst))
        updates, combined = [self.update(name) for name in types], self.combination([partial])
        if len(updates) == 1:
            return h_dst.replace(in_full(updates[0](h_dst.matrix, combined)))
        return h_dst.replace(in_full(type(updates[0]).update_all(updates, h_dst, combined)))

    def lay_out(
        self, blocks: TypedBlocks, relations: Sequence[Relation], types: Sequence[str]
    ) -> None:
        """Merge some relations of a hop into some types, and sort their edges by source for the
        backward pass."""
        merged = merge_relations(blocks, relations, types)
        edges, groups = self.patterns(merged)
        for pattern in edges:
            destinations_to_sources(pattern)
        for rows in groups:
            lay_out_groups(rows, merged.segment_places.device)

    @abstractmethod
    def patterns(self, merged: MergedRelations) -> tuple[list[Edges], list[Groups]]:
        """Return the edges along which :meth:`aggregate_merged` sums rows of relations that are not
        projected yet, and the groups of rows that it multiplies."""

    def partials(
        self,
        blocks: TypedBlocks,
        names: Mapping[Relation, Relation],
        h: Mapping[str, Tensor],
        h_dst: Mapping[str, Tensor],
        *,
        weights: Mapping[Relation, Tensor] | None = None,
        projected: Mapping[Relation, Tensor] | None = None,
        part: int | None = None,
    ) -> dict[str, list[Tensor]]:
        """Compute one partial for each type; see :meth:`RelationLayer.partials`."""
        if not names:
            return {}
        merged = merge_relations(blocks, tuple(names), tuple(h_dst), apart=projected is not None)
        relations, rows = tuple(names.values()), h if projected is None else projected
        inputs = MergedInputs(merged, relations, rows, h_dst, weights, part is not None)
        partial = self.aggregate_merged(inputs)
        return {name: [partial[place]] for name, place in merged.places.items()}

    @abstractmethod
    def aggregate_merged(self, inputs: MergedInputs) -> Tensor:
        """Compute one partial for all relations, [destinations of all types, ...]."""

    def aggregations_of(self, relations: Sequence[Relation]) -> list[_Aggregation]:
        """Return AGG_r of relations."""
        return [cast(_Aggregation, self.aggregation(relation)) for relation in relations]


def add_edge_terms(
    merged: MergedRelations, aggregations: Sequence[AttentionLayer], logits: Tensor
) -> Tensor:
    """Add what features of edges contribute to logits [edges of all relations, heads]."""
    if not any(aggregation.edge_dim for aggregation in aggregations):
        return logits
    blocks = zip(aggregations, merged.blocks.values(), strict=True)
    return logits + torch.cat([a.edge_term(block, logits.dtype) for a, block in blocks])


def add_importance(merged: MergedRelations, logits: Tensor) -> Tensor:
    """Correct logits [edges of all relations, heads] of edges with different probabilities."""
    if merged.equally_likely:
        return logits
    importance = [log_importance(block, logits.dtype) for block in merged.blocks.values()]
    return logits + torch.cat(importance).unsqueeze(-1)
