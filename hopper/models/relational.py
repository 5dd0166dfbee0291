"""Models of typed graphs: a layer aggregates relation by relation, then across relations.

``h_v' = update(h_v, AGG_all({AGG_r({h_u : u in N_r(v)}) : r into v's type}))`` (Heta, eq. 1). AGG_r
is a :class:`hopper.models.layer.Layer` whose ``aggregate`` yields a relation's partial result;
AGG_all, a :class:`Combination`, declares how partials may be combined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, TypeVar

from torch import Tensor, nn

from hopper.errors import RequestError
from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.models.combination import Combination
from hopper.models.layer import Layer, SumLayer
from hopper.models.merged import MergedRelations, merge_relations
from hopper.ops import drop_rows, in_full

_Aggregation = TypeVar("_Aggregation", bound=Layer)
NO_EDGES: Final[Mapping[Relation, int]] = {}
"""widths of features of edges, where none are read"""


class Update(nn.Module):
    """What one node type makes of its combined row and its own."""

    reads_destination: ClassVar[bool] = True
    """whether it reads ``h_dst``"""

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, out].

        Parameters
        ----------
        h_dst: [num_dst, in], the destinations' rows of the layer before.
        combined: [num_dst, ...], from AGG_all; zero where there is nothing to combine.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")


class RelationLayer(nn.Module):
    """One layer over several relations.

    Parameters
    ----------
    aggregations: AGG_r of every relation that the layer reads.
    combination: AGG_all, the same for every type.
    updates: by type of destination.
    nothing: shape of a combined row, for types that no relation of the layer ends in.
    merge: whether :meth:`merged` may take the place of a partial for every relation.
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
        self.aggregations = nn.ModuleList(aggregations[each] for each in self.relations)
        self.combination = combination
        self.types = tuple(sorted(updates))
        self.updates = nn.ModuleList(updates[each] for each in self.types)
        self.nothing = tuple(nothing)
        self._place = {each: place for place, each in enumerate(self.relations)}
        self._type_place = {each: place for place, each in enumerate(self.types)}

    def merges(self) -> bool:
        """Whether :meth:`merged` is there, and wanted."""
        return self._merge

    def merged(
        self,
        merged: MergedRelations,
        relations: Sequence[Relation],
        h: Mapping[str, Tensor],
        h_dst: Mapping[str, Tensor],
        weights: Mapping[Relation, Tensor] | None = None,
    ) -> Tensor:
        """[destinations of all types, ...]: the partial that stands for all relations.

        Parameters
        ----------
        merged: their edges.
        relations: as the layer knows them, in the order of ``merged.relations``.
        h, h_dst: by type as ``merged`` knows them, [num_src, in] and [num_dst, in].
        weights: as of :meth:`forward`.
        """
        raise NotImplementedError(f"{type(self).__name__} aggregates relation by relation")

    def rename(self, relations: Mapping[Relation, Relation], types: Mapping[str, str]) -> None:
        """Read relations and types that go by other names.

        Parameters
        ----------
        relations, types: by name, whose parameters it has; several names may have the same.
        """
        self._place = {each: self._place[own] for each, own in relations.items()}
        self._type_place = {each: self._type_place[own] for each, own in types.items()}
        self.relations, self.types = tuple(sorted(relations)), tuple(sorted(types))

    def aggregation(self, relation: Relation) -> Layer:
        """AGG_r of a relation."""
        found = self.aggregations[self._place[relation]]
        assert isinstance(found, Layer)
        return found

    def aggregations_of(
        self, kind: type[_Aggregation], relations: Sequence[Relation]
    ) -> list[_Aggregation]:
        """AGG_r of relations, all of one class."""
        found = []
        for each in relations:
            own = self.aggregation(each)
            assert isinstance(own, kind)
            found.append(own)
        return found

    def update(self, node_type: str) -> Update:
        """What makes the new rows of a type."""
        found = self.updates[self._type_place[node_type]]
        assert isinstance(found, Update)
        return found

    def reads_destination(self, node_type: str) -> bool:
        """Whether new rows of a type depend on its nodes' own rows of the layer before."""
        return self.update(node_type).reads_destination or self.aggregations_read(node_type)

    def aggregations_read(self, node_type: str) -> bool:
        """Whether an AGG_r into a type reads its nodes' own rows."""
        into = (self.aggregation(each) for each in self.relations if each.dst == node_type)
        return any(each.reads_destination for each in into)

    def forward(
        self,
        blocks: TypedBlocks,
        h: Mapping[str, Tensor],
        types: Sequence[str] | None = None,
        weights: Mapping[Relation, Tensor] | None = None,
        more: Mapping[str, Tensor] | None = None,
        projected: Mapping[Relation, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """By type, [num_dst, out]: the new rows of the destinations.

        Parameters
        ----------
        blocks: of every relation into a type that has destinations.
        h: by type, [num_src, in], the sources' rows, destinations first.
        types: of the destinations; None = all that the layer knows.
        weights: by relation, [edges], where blocks lack some edges, of a layer that adds up.
        more: by type, [num_dst, ...], what those edges add up to, if :meth:`merged` is there.
        projected: by relation, [num_src, ...], rows that are projected already; then ``h`` is read
            for the destinations' alone, and relations are taken one by one.
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
        """:meth:`forward`, with one pattern of edges for all relations."""
        relations = [each for each in self.relations if each.dst in types and each in blocks.blocks]
        h_dst = {each: h[each][: blocks.destinations[each]] for each in types}
        found: dict[str, Tensor] = {}
        if relations:
            merged = merge_relations(blocks, relations, types)
            partial = self.merged(merged, relations, h, h_dst, weights)
            found = {each: partial[place] for each, place in merged.places.items()}
        out = {}
        for each, rows in h_dst.items():
            partials = [own[each] for own in (found, more) if own and each in own]
            combined = (
                self.combination(partials) if partials else rows.new_zeros(len(rows), *self.nothing)
            )
            out[each] = in_full(self.update(each)(rows, combined))
        return out

    def partial(self, relation: Relation, block: Block, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, ...]: what one relation contributes to its destinations.

        Parameters
        ----------
        h_src, h_dst: [num_src, in] and [num_dst, in].
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
        """[num_dst, ...]: the same, of projected rows.

        Parameters
        ----------
        z_src: [num_src, ...]. weights: as of :meth:`forward`.
        """
        aggregation = self.aggregation(relation)
        if weights is None:
            return self.combination.partial(block, aggregation.aggregate(block, z_src, h_dst))
        assert isinstance(aggregation, SumLayer)
        return aggregation.combine(block, z_src, weights[relation], h_dst)

    def part(
        self, relation: Relation, block: Block, h_src: Tensor, h_dst: Tensor, place: int
    ) -> Tensor:
        """[num_dst, ...]: what one of several parts of a relation's edges contributes; of all of
        them :meth:`joined` makes a partial.

        Parameters
        ----------
        place: which of the parts.
        """
        aggregation = self.aggregation(relation)
        found = aggregation.part(block, aggregation.project(h_src), h_dst)
        return self.combination.part(block, found, place)

    def joined(self, relation: Relation, parts: Sequence[Tensor]) -> Tensor:
        """[num_dst, ...]: a relation's partial, of all of its parts."""
        return self.combination.joined(self.aggregation(relation), parts)


class HGNN(nn.Module):
    """A stack of relation-wise layers behind one input projection per node type.

    Parameters
    ----------
    target: type of the roots.
    inputs: by type, the width of its features; every type that the first layer reads.
    hidden: width that all types are projected to.
    layers: first layer first; the last one's rows of the target are the logits, unless there is a
        ``head``.
    head: from the last layer's rows to logits.
    dropout: probability in [0, 1) for the input rows of every layer, keyed by type and node.
    projects: whether there are input projections; otherwise rows are ``hidden`` wide as they come.
    """

    reads_types: ClassVar[bool] = True
    """what tells a class of one's own for typed graphs from one for graphs of one type"""

    def __init__(
        self,
        target: str,
        inputs: Mapping[str, int],
        hidden: int,
        layers: Sequence[RelationLayer],
        head: nn.Module | None = None,
        dropout: float = 0.0,
        projects: bool = True,
    ) -> None:
        super().__init__()
        self.target = target
        self.hidden = hidden
        self.types = tuple(sorted(inputs))
        self.widths = dict(inputs)
        self._place = {each: place for place, each in enumerate(self.types)}
        self.inputs = nn.ModuleList(
            nn.Linear(inputs[each], hidden) if projects else nn.Identity() for each in self.types
        )
        self.layers = nn.ModuleList(layers)
        self.head = head if head is not None else nn.Identity()
        self.dropout = dropout
        for each in self.inputs:
            if isinstance(each, nn.Linear):
                nn.init.xavier_uniform_(each.weight)
                nn.init.zeros_(each.bias)

    @property
    def has_head(self) -> bool:
        """Whether a classifier follows the last layer, whose rows are no logits then."""
        return not isinstance(self.head, nn.Identity)

    def forward(self, blocks: Sequence[TypedBlocks], x: Mapping[str, Tensor]) -> Tensor:
        """[num roots, out]: logits of the last hop's destinations of the target type; parameters
        and errors as of :meth:`rows`."""
        logits: Tensor = self.head(self.rows(blocks, x)[self.target])
        return logits

    def rows(self, blocks: Sequence[TypedBlocks], x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By type, [n, width]: the last layer's rows of the last hop's destinations.

        Parameters
        ----------
        blocks: in order of computation; each one's destinations are the next one's sources.
        x: by type, [sources of the first hop, in], input rows; a type without any may be missing.

        Raises
        ------
        RequestError: the number of hops or of rows does not fit; names the type.
        """
        if len(blocks) != len(self.layers):
            raise RequestError(
                f"{type(self).__name__}: expected {len(self.layers)} hops, one per layer; given "
                f"{len(blocks)}"
            )
        h = {
            each: self.first_rows(each, x.get(each), blocks[0].sources[each])
            for each in self.reading_order(x)
        }
        for index, (layer, hop) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(hop, self.drop_all(index, hop, h))
        return h

    def reading_order(self, x: Mapping[str, Tensor]) -> list[str]:
        """All types, in the order in which input rows are given: the last may still be waited for
        when they are read. Types without any come last."""
        given = [each for each in x if each in self._place]
        return [*given, *(each for each in self.types if each not in given)]

    def first_rows(self, node_type: str, x: Tensor | None, count: int) -> Tensor:
        """[count, hidden]: a type's projected input rows.

        Parameters
        ----------
        x: [count, in]; None where there are none.

        Raises
        ------
        RequestError: the shape does not fit; names the type.
        """
        parameter = next(self.parameters())
        rows = parameter.new_empty(0, self.widths[node_type]) if x is None else x
        expected = (count, self.widths[node_type])
        if rows.shape != expected:
            raise RequestError(
                f"{type(self).__name__}: {node_type}: expected rows {list(expected)}, given "
                f"{list(rows.shape)}"
            )
        return in_full(self.input_of(node_type)(rows.to(parameter.dtype)))

    def input_of(self, node_type: str) -> nn.Module:
        """A type's input projection."""
        return self.inputs[self._place[node_type]]

    def drop_all(self, index: int, hop: TypedBlocks, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By type, the rows that a layer reads: dropout applied, in training."""
        if not self.training or self.dropout == 0.0:
            return dict(h)
        return {name: self.drop(index, hop.nodes[name], rows) for name, rows in h.items()}

    def drop(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """[n, hidden]: one type's rows that a layer reads.

        Parameters
        ----------
        nodes: the rows'.
        """
        if not self.training or self.dropout == 0.0:
            return rows
        # The key holds the type too: nodes of two types may have the same id.
        return drop_rows(nodes, rows, self.dropout, index)

    def rename(
        self,
        types: Mapping[str, str],
        relations: Mapping[Relation, Relation],
        reads: Sequence[tuple[Sequence[Relation], Sequence[str]]],
    ) -> None:
        """Read types and relations that go by other names; the target keeps its own.

        Parameters
        ----------
        types, relations: by name, whose parameters it has; several names may have the same.
        reads: by layer, first layer first, the names of the relations that it aggregates and of
            the types of its destinations.
        """
        self.widths = {each: self.widths[own] for each, own in types.items()}
        self._place = {each: self._place[own] for each, own in types.items()}
        self.types = tuple(sorted(types))
        for index, (read, destinations) in enumerate(reads):
            self.relation_layer(index).rename(
                {each: relations[each] for each in read},
                {each: types[each] for each in destinations},
            )

    def relation_layer(self, index: int) -> RelationLayer:
        """One of the layers."""
        layer = self.layers[index]
        assert isinstance(layer, RelationLayer)
        return layer

    def root_layers(self, node_type: str | None = None) -> list[RelationLayer]:
        """The layers that make rows of the roots: the last one, and those before it for as long as
        the next one reads its destinations.

        Parameters
        ----------
        node_type: of the roots; None = the target.
        """
        found: list[RelationLayer] = []
        for index in reversed(range(len(self.layers))):
            layer = self.relation_layer(index)
            found.insert(0, layer)
            if not layer.reads_destination(node_type or self.target):
                break
        return found


def make_head(hidden: int, out_dim: int) -> nn.Linear:
    """A linear classifier."""
    head = nn.Linear(hidden, out_dim)
    nn.init.xavier_uniform_(head.weight)
    nn.init.zeros_(head.bias)
    return head
