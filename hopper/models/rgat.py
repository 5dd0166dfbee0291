"""R-GAT (Busbridge et al., Relational Graph Attention Networks, 2019).

Attention is within a relation (WIRGAT, with additive logits), and relations are summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopper.graph.block import Edges
from hopper.graph.schema import Relation
from hopper.models.combination import SumOfRelations, merge_softmax, normalise
from hopper.models.gat import NEGATIVE_SLOPE
from hopper.models.layer import Activation, Algebra, AttentionLayer, check_heads
from hopper.models.merged import MergedRelations
from hopper.models.relation_layer import MergedInputs, MergedLayer, add_edge_terms, add_importance
from hopper.models.relational import HGNN, NO_EDGES, make_head
from hopper.models.rgcn import RootWeight
from hopper.ops import edge_add, edge_softmax, edge_sum, grouped_product, weighted_sum
from hopper.ops.groups import Groups


class RelationAttention(AttentionLayer):
    """AGG_r: GAT's attention over the sampled in-neighbours of one relation, heads concatenated.

    :class:`RGATLayer` computes it for all relations at once.

    With ``z = W_r h`` per head, edge (u, v) has the logit
    ``leaky_relu(a_src . z_u + a_dst . z_v)``. The softmax is over this relation's edges only. The
    destination is not its own neighbour; its row is added with the root weight. Features e_uv of
    edges add ``a_edge . e_uv`` to the argument of leaky_relu, for each head.

    Parameters
    ----------
    edge_dim: the width of features of edges; 0 = the layer reads none.
    """

    algebra: ClassVar[Algebra] = "other"
    reads_destination: ClassVar[bool] = True

    def __init__(self, in_dim: int, out_dim: int, heads: int, edge_dim: int = 0) -> None:
        super().__init__()
        self.heads, self.width = heads, out_dim // heads
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        # A node takes the mean of its neighbours at first.
        self.attention_src = nn.Parameter(torch.zeros(heads, self.width))
        self.attention_dst = nn.Parameter(torch.zeros(heads, self.width))
        nn.init.xavier_normal_(self.linear.weight, nn.init.calculate_gain("relu"))
        self._add_edge_linear(edge_dim, heads)

    def project(self, h_src: Tensor) -> Tensor:
        """Project rows for each head, to [n, heads, width]."""
        return self.linear(h_src).view(h_src.shape[0], self.heads, self.width)

    def part_width(self) -> int:
        """Return the width of parts, which also hold the largest logit and the normaliser."""
        return self.heads * (2 + self.width)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join parts by log-sum-exp."""
        shape = (self.heads, 2 + self.width)
        merged = merge_softmax([part.unflatten(1, shape) for part in parts])
        return normalise(merged).flatten(1)


class RGATLayer(MergedLayer[RelationAttention]):
    """An R-GAT layer; a ConfigError tells that the output's width is not a multiple of the number
    of heads."""

    def __init__(
        self,
        relations: Sequence[Relation],
        types: Sequence[str],
        in_dim: int,
        out_dim: int,
        *,
        heads: int,
        activation: Activation | None,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:
        check_heads(out_dim, heads)
        super().__init__(
            {
                relation: RelationAttention(in_dim, out_dim, heads, edges.get(relation, 0))
                for relation in sorted(relations)
            },
            SumOfRelations(),
            {name: RootWeight(in_dim, out_dim, activation) for name in sorted(types)},
            (out_dim,),
        )
        self._sizes = in_dim, out_dim, heads

    def patterns(self, merged: MergedRelations) -> tuple[list[Edges], list[Groups]]:
        """Return the edges of logits, and those along which messages are summed; and the rows that
        each relation projects, and its segments."""
        pairs, groups = merged.segments(projected=True), [merged.projections, merged.groups]
        if merged.project_first(*self._sizes):
            return [pairs], groups
        return [pairs, merged.segments(projected=False)], groups

    def aggregate_merged(self, inputs: MergedInputs) -> Tensor:
        """Compute the attention of all relations at once.

        ``a . (W h)`` is ``(W' a) . h``, so logits need no projected rows, and messages may be
        projected after they are summed.
        """
        merged, relations, h, h_dst, _, is_part = inputs
        aggregations = self.aggregations_of(relations)
        matrices = torch.stack([a.linear.weight for a in aggregations]).transpose(1, 2)
        heads, width = aggregations[0].heads, aggregations[0].width
        by_head = matrices.unflatten(2, (heads, width))
        src, dst = (
            torch.einsum(
                "rihw,rhw->rih", by_head, torch.stack([getattr(a, name) for a in aggregations])
            )
            for name in ("attention_src", "attention_dst")
        )
        rows = None
        if merged.apart:
            rows, relation_rows = merged.sources(h), [h[r] for r in merged.relations]
            terms = [
                (z_src * aggregation.attention_src).sum(-1)
                for z_src, aggregation in zip(relation_rows, aggregations, strict=True)
            ]
            src_term = torch.cat(terms)
        else:
            src_term = merged.project_rows(h, src)
            if merged.project_first(*self._sizes):
                rows = merged.project_rows(h, matrices).unflatten(1, (heads, width))
        pairs = merged.segments(projected=True)
        ends = merged.segment_rows(merged.destination_rows(h_dst))
        dst_term = grouped_product(ends, dst, merged.groups)
        logits = add_edge_terms(merged, aggregations, edge_add(pairs, src_term, dst_term))
        logits = add_importance(merged, functional.leaky_relu(logits, NEGATIVE_SLOPE))
        if is_part:
            top, shares = merged.softmax_terms(pairs, logits)
        else:
            shares = edge_softmax(pairs, logits)
        if rows is not None:
            sums = weighted_sum(pairs, rows, shares)
        else:
            rows = merged.sources(h).unsqueeze(1).expand(-1, heads, -1)
            mixed = weighted_sum(merged.segments(projected=False), rows, shares)
            sums = grouped_product(mixed, by_head.transpose(1, 2), merged.groups)
        if is_part:
            return merged.joint_partial(top, edge_sum(pairs, shares), sums).flatten(1)
        return merged.add_segments(sums.flatten(1))


class RGAT(HGNN):
    """A stack of R-GAT layers with ReLU between them.

    The last layer classifies with one attention head, unless ``head`` adds a linear classifier.
    Parameters are those of :class:`hopper.models.rgcn.RGCN`.
    """

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
        head: bool = False,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:
        last = len(reads) - 1
        layers = []
        for index, (relations, types) in enumerate(reads):
            classifies = index == last and not head
            layers.append(
                RGATLayer(
                    relations,
                    types,
                    hidden,
                    out_dim if classifies else hidden,
                    heads=1 if classifies else heads,
                    activation=None if classifies else torch.relu,
                    edges=edges,
                )
            )
        classifier = make_head(hidden, out_dim) if head else None
        super().__init__(target, inputs, hidden, layers, classifier, dropout)
