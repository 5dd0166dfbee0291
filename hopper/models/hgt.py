"""HGT (Hu et al., Heterogeneous Graph Transformer, WWW 2020, section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopper.graph.block import Edges
from hopper.graph.schema import Relation
from hopper.models.combination import JointSoftmax, merge_softmax
from hopper.models.layer import Algebra, AttentionLayer, check_heads, init_linears
from hopper.models.merged import MergedRelations
from hopper.models.relation_layer import (
    MergedInputs,
    MergedLayer,
    Update,
    add_edge_terms,
    add_importance,
)
from hopper.models.relational import HGNN, NO_EDGES, make_head
from hopper.models.typed_rows import TypedRows, linear_by_type
from hopper.ops import edge_dot, edge_sum, grouped_product, weighted_sum
from hopper.ops.groups import Groups


class TypeProjections(nn.Module):
    """The projections K and V of a source type, and Q of a destination type (eq. 3, 4)."""

    def __init__(self, width: int, *, is_source: bool, is_destination: bool) -> None:
        super().__init__()
        self.key_value = nn.Linear(width, 2 * width) if is_source else None
        self.query = nn.Linear(width, width) if is_destination else None
        init_linears(self.children())


class RelationPartial(AttentionLayer):
    """AGG_r: a relation's partial of the attention over all relations.

    :class:`HGTLayer` computes the partials of all relations at once. Per head, edge (u, v) has the
    logit ``mu_r (K h_u W_att_r) . (Q h_v) / sqrt(d)`` and the message ``V h_u W_msg_r``. Features
    e_uv of edges add ``a_edge . e_uv`` to the logits of each head (a bias as in Ying et al.,
    Graphormer, NeurIPS 2021, section 3.1.3).

    Parameters
    ----------
    source, destination: the projections of the relation's types.
    edge_dim: the width of features of edges; 0 = the layer reads none.
    """

    algebra: ClassVar[Algebra] = "softmax"
    reads_destination: ClassVar[bool] = True

    def __init__(
        self, source: TypeProjections, destination: TypeProjections, heads: int, edge_dim: int = 0
    ) -> None:
        super().__init__()
        assert source.key_value is not None
        assert destination.query is not None
        # The tuple hides them from torch: several relations share them, and the layer owns them.
        self._projections = (source.key_value, destination.query)
        self.heads = heads
        self.width = destination.query.out_features // heads
        # A node takes the mean of its neighbours at first.
        self.attention = nn.Parameter(torch.zeros(heads, self.width, self.width))
        self.message = nn.Parameter(torch.empty(heads, self.width, self.width))
        self.prior = nn.Parameter(torch.ones(heads))
        for matrix in self.message:
            nn.init.xavier_uniform_(matrix)
        self._add_edge_linear(edge_dim, heads)

    @property
    def key_value(self) -> nn.Linear:
        """K and V, which make [n, 2 * heads * width] of source rows."""
        return self._projections[0]

    @property
    def query(self) -> nn.Linear:
        """Q, which makes [n, heads * width] of destination rows."""
        return self._projections[1]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join parts by log-sum-exp."""
        return merge_softmax(parts)


class GatedResidual(Update):
    """``sigmoid(a) A gelu(combined) + (1 - sigmoid(a)) h_v`` (eq. 5).

    The learnable skip ``a`` follows the authors' code.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.skip = nn.Parameter(torch.ones(()))
        init_linears([self.linear])

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Return the gated sum of the combined rows and the destinations' own."""
        gate = torch.sigmoid(self.skip)
        return gate * self.linear(functional.gelu(combined.flatten(1))) + (1 - gate) * h_dst

    @classmethod
    def update_all(cls, updates: Sequence[Self], h_dst: TypedRows, combined: Tensor) -> Tensor:
        """Multiply the rows of all types at once."""
        gates = torch.stack([update.skip for update in updates]).sigmoid().split(1)
        sizes = h_dst.sizes.values()
        gate = torch.cat([of.expand(n, 1) for of, n in zip(gates, sizes, strict=True)])
        rows = functional.gelu(combined.flatten(1))
        out = linear_by_type([update.linear for update in updates], rows, h_dst.groups)
        return gate * out + (1 - gate) * h_dst.matrix


class HGTLayer(MergedLayer[RelationPartial]):
    """An HGT layer, which keeps the width; a ConfigError tells that it is not a multiple of the
    number of heads."""

    def __init__(
        self,
        relations: Sequence[Relation],
        types: Sequence[str],
        width: int,
        *,
        heads: int,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:
        check_heads(width, heads)
        sources = {relation.src for relation in relations}
        destinations = {relation.dst for relation in relations}
        projections = {
            name: TypeProjections(
                width, is_source=name in sources, is_destination=name in destinations
            )
            for name in sorted(sources | destinations)
        }
        super().__init__(
            {
                r: RelationPartial(projections[r.src], projections[r.dst], heads, edges.get(r, 0))
                for r in sorted(relations)
            },
            JointSoftmax(),
            {name: GatedResidual(width) for name in sorted(types)},
            (heads, width // heads),
        )
        self.projections = nn.ModuleList(projections[name] for name in sorted(projections))

    def patterns(self, merged: MergedRelations) -> tuple[list[Edges], list[Groups]]:
        """Return the edges from keys and values to segments, and from segments on; and the rows of
        each type, and the segments of each relation."""
        edges = [merged.segments(projected=False), merged.destinations]
        return edges, [merged.sources_by_type, merged.destinations_by_type, merged.groups]

    def aggregate_merged(self, inputs: MergedInputs) -> Tensor:
        """Compute one partial of JointSoftmax for all relations.

        Keys and messages are computed once for each type. A relation's matrices are applied to
        queries, and to messages that are summed already.
        """
        merged, relations, h, h_dst, *_ = inputs
        aggregations = self.aggregations_of(relations)
        heads, width = aggregations[0].heads, aggregations[0].width
        by_name = dict(zip(merged.relations, aggregations, strict=True))
        readers = [by_name[relations[0]].key_value for relations in merged.readers.values()]
        keys_values = linear_by_type(readers, merged.sources(h), merged.sources_by_type)
        keys, values = keys_values.view(-1, 2, heads, width).unbind(1)
        by_destination = {relation.dst: by_name[relation] for relation in merged.relations}
        # A type into which no relation leads has no segments, and any projection does.
        projections = [by_destination.get(name, aggregations[0]).query for name in merged.places]
        rows = merged.destination_rows(h_dst)
        queries = linear_by_type(projections, rows, merged.destinations_by_type)
        queries = merged.segment_rows(queries.view(-1, heads, width))
        prior = torch.stack([a.prior for a in aggregations]) / math.sqrt(width)
        attention = torch.stack([a.attention for a in aggregations]).transpose(2, 3)
        queries = grouped_product(queries, attention * prior[..., None, None], merged.groups)
        pattern = merged.segments(projected=False)
        logits = add_edge_terms(merged, aggregations, edge_dot(pattern, keys, queries))
        logits = add_importance(merged, logits)
        top, terms = merged.softmax_terms(pattern, logits)
        message = torch.stack([a.message for a in aggregations])
        messages = grouped_product(weighted_sum(pattern, values, terms), message, merged.groups)
        return merged.joint_partial(top, edge_sum(pattern, terms), messages)


class HGT(HGNN):
    """A stack of HGT layers and a linear head; parameters as in
    :class:`hopper.models.rgcn.RGCN`."""

    def __init__(
        self,
        *,
        target: str,
        inputs: Mapping[str, int],
        reads: Sequence[tuple[Sequence[Relation], Sequence[str]]],
        out_dim: int,
        hidden: int,
        heads: int,
        dropout: float,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:
        layers = [
            HGTLayer(relations, types, hidden, heads=heads, edges=edges)
            for relations, types in reads
        ]
        super().__init__(target, inputs, hidden, layers, make_head(hidden, out_dim), dropout)
