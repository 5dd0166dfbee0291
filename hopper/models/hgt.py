"""HGT (Hu et al., Heterogeneous Graph Transformer, WWW 2020, section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopper.errors import ConfigError
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.models.combination import JointSoftmax, joint_partial, merged_softmax, softmax_part
from hopper.models.gat import log_importance
from hopper.models.layer import Algebra, AttentionLayer, edge_linear
from hopper.models.merged import MergedRelations
from hopper.models.relational import HGNN, NO_EDGES, RelationLayer, Update, make_head
from hopper.ops import (
    destination_rows,
    edge_dot,
    edge_sum,
    grouped_product,
    segment_max,
    source_rows,
    weighted_sum,
)


class TypeProjections(nn.Module):
    """Keys and messages of a source type, queries of a destination type: K, V and Q (eq. 3, 4)."""

    def __init__(self, width: int, *, is_source: bool, is_destination: bool) -> None:
        super().__init__()
        self.key_value = nn.Linear(width, 2 * width) if is_source else None
        self.query = nn.Linear(width, width) if is_destination else None
        for linear in (self.key_value, self.query):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)


class RelationPartial(AttentionLayer):
    """AGG_r: a relation's part of the joint attention, for
    :class:`hopper.models.relational.JointSoftmax`.

    Edge (u, v) has per head the logit ``mu_r (K h_u W_att_r) . (Q h_v) / sqrt(d)`` and the message
    ``V h_u W_msg_r``. Both of the source's terms are made where it lives. Features e_uv of edges
    are added to logits, ``a_edge . e_uv`` for each head (a bias as in Ying et al., Graphormer,
    NeurIPS 2021, section 3.1.3).

    Parameters
    ----------
    source, destination: of its types. edge_dim: width of features of edges; 0 = none are read.
    """

    algebra: ClassVar[Algebra] = "softmax"
    reads_destination: ClassVar[bool] = True

    def __init__(
        self,
        source: TypeProjections,
        destination: TypeProjections,
        heads: int,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        # In a tuple: they belong to the layer, and several relations share them.
        self._projections = (source, destination)
        assert destination.query is not None
        self.heads = heads
        self.width = destination.query.out_features // heads
        self.attention = nn.Parameter(torch.empty(heads, self.width, self.width))
        self.message = nn.Parameter(torch.empty(heads, self.width, self.width))
        self.prior = nn.Parameter(torch.ones(heads))
        for matrices in (self.attention, self.message):
            for matrix in matrices:
                nn.init.xavier_uniform_(matrix)
        self.edge_dim = edge_dim
        if edge_dim:
            self.edge_linear = edge_linear(edge_dim, heads)

    def keys_values(self, h_src: Tensor) -> Tensor:
        """[n, 2, heads, width]: K and V of the source type."""
        key_value = self._projections[0].key_value
        assert key_value is not None
        out: Tensor = key_value(h_src).view(h_src.shape[0], 2, self.heads, self.width)
        return out

    def queries(self, h_dst: Tensor) -> Tensor:
        """[n, heads, width]: Q of the destination type."""
        query = self._projections[1].query
        assert query is not None
        out: Tensor = query(h_dst).view(h_dst.shape[0], self.heads, self.width)
        return out

    def project(self, h_src: Tensor) -> Tensor:
        """[n, heads, 2 * width]: what is compared with queries, and the message."""
        rows = self.keys_values(h_src)
        key = torch.einsum("nhi,hio->nho", rows[:, 0], self.attention)
        message = torch.einsum("nhi,hio->nho", rows[:, 1], self.message)
        scale = self.prior / math.sqrt(self.width)
        return torch.cat((key * scale.unsqueeze(-1), message), -1)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, heads, 2 + width]: see :class:`hopper.models.relational.JointSoftmax`."""
        sources = source_rows(block, z_src)
        queries = destination_rows(block, self.queries(h_dst))
        logits = (sources[..., : self.width] * queries).sum(-1)
        if self.edge_dim:
            logits = logits + self.edge_term(block, logits.dtype)
        if not block.equally_likely:
            logits = logits + log_importance(block, logits.dtype).unsqueeze(-1)
        return softmax_part(block, logits, sources[..., self.width :])

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """See :class:`Layer`: log-sum-exp."""
        return merged_softmax(parts)


class GatedResidual(Update):
    """``sigmoid(a) A gelu(combined) + (1 - sigmoid(a)) h_v`` (eq. 5; the learnable skip is that of
    the authors' code)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.skip = nn.Parameter(torch.ones(()))
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """See :class:`Update`."""
        gate = torch.sigmoid(self.skip)
        out: Tensor = self.linear(functional.gelu(combined.flatten(1)))
        return gate * out + (1 - gate) * h_dst


class HGTLayer(RelationLayer):
    """An HGT layer; keeps the width."""

    def __init__(
        self,
        relations: Sequence[Relation],
        types: Sequence[str],
        width: int,
        *,
        heads: int,
        merge: bool = False,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:
        if width % heads:
            raise ConfigError(
                f"model.heads: expected a divisor of the width {width}, given {heads}"
            )
        sources = {relation.src for relation in relations}
        destinations = {relation.dst for relation in relations}
        projections = {
            each: TypeProjections(
                width, is_source=each in sources, is_destination=each in destinations
            )
            for each in sorted(sources | destinations)
        }
        super().__init__(
            {
                each: RelationPartial(
                    projections[each.src], projections[each.dst], heads, edges.get(each, 0)
                )
                for each in sorted(relations)
            },
            JointSoftmax(),
            {each: GatedResidual(width) for each in sorted(types)},
            (heads, width // heads),
            merge,
        )
        self.projections = nn.ModuleList(projections[each] for each in sorted(projections))

    def merged(
        self,
        merged: MergedRelations,
        relations: Sequence[Relation],
        h: Mapping[str, Tensor],
        h_dst: Mapping[str, Tensor],
        weights: Mapping[Relation, Tensor] | None = None,
    ) -> Tensor:
        """See :class:`RelationLayer`. Keys and messages are made once a type; a relation's matrices
        are applied to the queries, and to messages that are already added up."""
        own = self.aggregations_of(RelationPartial, relations)
        heads, width = own[0].heads, own[0].width
        by_name = dict(zip(merged.relations, own, strict=True))
        made = {
            name: by_name[readers[0]].keys_values(h[name])
            for name, readers in merged.readers.items()
        }
        keys, values = (merged.sources({e: rows[:, i] for e, rows in made.items()}) for i in (0, 1))
        asked = {each.dst: by_name[each] for each in merged.relations}
        queries = merged.segment_rows(
            {
                # Of a type that no relation ends in there is no segment.
                name: asked[name].queries(rows)
                if name in asked
                else rows.new_zeros(len(rows), heads, width)
                for name, rows in h_dst.items()
            }
        )
        prior = torch.stack([each.prior for each in own]) / math.sqrt(width)
        attention = torch.stack([each.attention for each in own]).transpose(2, 3)
        queries = _by_head(queries, attention * prior[..., None, None], merged.bounds)
        pattern = merged.segments(projected=False)
        logits = edge_dot(pattern, keys, queries)
        if any(each.edge_dim for each in own):
            blocks = zip(own, merged.blocks.values(), strict=True)
            logits = logits + torch.cat([e.edge_term(block, logits.dtype) for e, block in blocks])
        if not merged.equally_likely:
            importance = [log_importance(b, logits.dtype) for b in merged.blocks.values()]
            logits = logits + torch.cat(importance).unsqueeze(-1)
        top = segment_max(pattern, logits)
        shares = (logits - destination_rows(pattern, top)).exp()
        message = torch.stack([each.message for each in own])
        return joint_partial(
            merged.destinations,
            torch.stack((top, edge_sum(pattern, shares)), -1),
            _by_head(weighted_sum(pattern, values, shares), message, merged.bounds),
        )


def _by_head(rows: Tensor, matrices: Tensor, bounds: Sequence[int]) -> Tensor:
    """[n, heads, out]: [n, heads, in] rows times [groups, heads, in, out]."""
    products = [
        grouped_product(rows[:, head], matrices[:, head], bounds) for head in range(rows.shape[1])
    ]
    return torch.stack(products, 1)


class HGT(HGNN):
    """A stack of HGT layers and a linear head; parameters as those of
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
        merge: bool = False,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:
        layers = [
            HGTLayer(relations, types, hidden, heads=heads, merge=merge, edges=edges)
            for relations, types in reads
        ]
        super().__init__(target, inputs, hidden, layers, make_head(hidden, out_dim), dropout)
