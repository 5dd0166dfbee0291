"""Models of typed graphs: a layer aggregates relation by relation, then across relations.

``h_v' = update(h_v, AGG_all({AGG_r({h_u : u in N_r(v)}) : r into v's type}))`` (Heta, eq. 1). AGG_r
is a :class:`hopper.models.layer.Layer` whose ``aggregate`` yields a relation's partial result;
AGG_all, a :class:`Combination`, declares how partials may be combined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from hopper.errors import RequestError
from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation
from hopper.models.layer import Layer
from hopper.ops import drop_rows


class Combination(nn.Module):
    """AGG_all: the partial results of all relations into a type become one row a destination.

    ``algebra`` says how: "sum" adds up, "softmax" combines by log-sum-exp, "other" needs every
    relation's apart.
    """

    algebra: ClassVar[Literal["sum", "softmax", "other"]] = "other"

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """[num_dst, ...]: combined rows.

        Parameters
        ----------
        partials: per relation, in canonical order, [num_dst, ...]; one at least.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")


class SumOfRelations(Combination):
    """The sum over relations."""

    algebra: ClassVar[Literal["sum", "softmax", "other"]] = "sum"

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """See :class:`Combination`."""
        return _added(partials)


class JointSoftmax(Combination):
    """One softmax over the edges of all relations (HGT, eq. 3).

    A partial is [num_dst, heads, 2 + width]: the largest logit of a relation's edges, the sum of
    ``exp(logit - largest)``, and the sum of messages times that. No gradient flows through the
    largest logits, which only keep the exponentials finite; -inf stands for no edge.
    """

    algebra: ClassVar[Literal["sum", "softmax", "other"]] = "softmax"

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """[num_dst, heads, width]: zero where a destination has no edge of any relation."""
        tops = torch.stack([partial[..., 0].detach() for partial in partials])
        top = tops.max(0).values
        finite = torch.where(top.isinf(), torch.zeros_like(top), top)
        scales = (tops - finite).exp().unsqueeze(-1)
        merged = _added(
            [scale * part[..., 1:] for scale, part in zip(scales, partials, strict=True)]
        )
        total = merged[..., :1]
        return merged[..., 1:] / torch.where(total == 0, torch.ones_like(total), total)


class Update(nn.Module):
    """What one node type makes of its combined row and its own."""

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
        self.aggregations = nn.ModuleList(aggregations[each] for each in self.relations)
        self.combination = combination
        self.types = tuple(sorted(updates))
        self.updates = nn.ModuleList(updates[each] for each in self.types)
        self.nothing = tuple(nothing)

    def aggregation(self, relation: Relation) -> Layer:
        """AGG_r of a relation."""
        found = self.aggregations[self.relations.index(relation)]
        assert isinstance(found, Layer)
        return found

    def forward(self, blocks: TypedBlocks, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By type, [num_dst, out]: the new rows of the destinations.

        Parameters
        ----------
        h: by type, [num_src, in], the sources' rows, destinations first.
        """
        out = {}
        for node_type, update in zip(self.types, self.updates, strict=True):
            h_dst = h[node_type][: blocks.destinations[node_type]]
            partials = [
                self._partial(relation, blocks.blocks[relation], h[relation.src], h_dst)
                for relation in self.relations
                if relation.dst == node_type
            ]
            if partials:
                combined = self.combination(partials)
            else:
                combined = h_dst.new_zeros(h_dst.shape[0], *self.nothing)
            out[node_type] = update(h_dst, combined)
        return out

    def _partial(self, relation: Relation, block: Block, h_src: Tensor, h_dst: Tensor) -> Tensor:
        aggregation = self.aggregation(relation)
        return aggregation.aggregate(block, aggregation.project(h_src), h_dst)


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
    """

    def __init__(
        self,
        target: str,
        inputs: Mapping[str, int],
        hidden: int,
        layers: Sequence[RelationLayer],
        head: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.target = target
        self.types = tuple(sorted(inputs))
        self.widths = dict(inputs)
        self.inputs = nn.ModuleList(nn.Linear(inputs[each], hidden) for each in self.types)
        self.layers = nn.ModuleList(layers)
        self.head = head if head is not None else nn.Identity()
        self.dropout = dropout
        for each in self.inputs:
            assert isinstance(each, nn.Linear)
            nn.init.xavier_uniform_(each.weight)
            nn.init.zeros_(each.bias)

    def forward(self, blocks: Sequence[TypedBlocks], x: Mapping[str, Tensor]) -> Tensor:
        """[num roots, out]: logits of the last hop's destinations of the target type.

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
        h = {each: self._input(each, blocks[0], x) for each in self.types}
        for index, (layer, hop) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(
                hop, {name: self._dropped(index, hop, name, rows) for name, rows in h.items()}
            )
        logits: Tensor = self.head(h[self.target])
        return logits

    def _input(self, node_type: str, hop: TypedBlocks, x: Mapping[str, Tensor]) -> Tensor:
        linear = self.inputs[self.types.index(node_type)]
        assert isinstance(linear, nn.Linear)
        rows = x.get(node_type)
        if rows is None:
            rows = linear.weight.new_empty(0, self.widths[node_type])
        expected = (hop.sources[node_type], self.widths[node_type])
        if rows.shape != expected:
            raise RequestError(
                f"{type(self).__name__}: {node_type}: expected rows {list(expected)}, given "
                f"{list(rows.shape)}"
            )
        out: Tensor = linear(rows.to(linear.weight.dtype))
        return out

    def _dropped(self, index: int, hop: TypedBlocks, node_type: str, rows: Tensor) -> Tensor:
        if not self.training or self.dropout == 0.0:
            return rows
        # The key holds the type too: nodes of two types may have the same id.
        return drop_rows(hop.nodes(node_type), rows, self.dropout, index)


def _added(parts: Sequence[Tensor]) -> Tensor:
    """The sum, in the order given."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
