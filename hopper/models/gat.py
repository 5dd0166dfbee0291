"""GAT (Velickovic et al., Graph Attention Networks, ICLR 2018, section 2.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopper.graph.block import Block
from hopper.models.dropout import EdgeDropout, SelfDropout
from hopper.models.gnn import GNN
from hopper.models.layer import Algebra, AttentionLayer, edge_linear
from hopper.ops import edge_add, edge_softmax_with_self, weighted_sum

NEGATIVE_SLOPE = 0.2


class GATLayer(AttentionLayer):
    """Attention over the sampled in-neighbours and the node itself.

    With ``z = W h`` per head, edge (u, v) has the logit
    ``leaky_relu(a_src . z_u + a_dst . z_v)`` (eq. 3, the attention vector in two halves), and v
    itself ``leaky_relu(a_src . z_v + a_dst . z_v)``. The softmax (eq. 2) runs over the edges of v
    and v itself: what GAT computes on a graph with one self loop added per node, without needing
    the loop among the block's edges. A self loop that the graph already has counts besides it.

    Over sampled neighbours the softmax is over those sampled. Where the sampler draws some
    neighbours of v with a higher probability than others, each exponential is multiplied by its
    neighbour's inverse probability over the mean of these (docs/samplers.md).

    Features e_uv of edges are added to what leaky_relu is taken of, ``a_edge . e_uv`` for each
    head; v itself has none.

    Parameters
    ----------
    width: output width per head.
    concat: heads side by side (eq. 5), or their mean (eq. 6, the last layer).
    dropout: probability for the attention of each edge and head.
    index: index of the layer, for the dropout's key.
    edge_dim: width of features of edges; 0 = none are read.
    """

    algebra: ClassVar[Algebra] = "softmax"
    reads_destination: ClassVar[bool] = True

    def __init__(
        self,
        in_dim: int,
        width: int,
        heads: int,
        *,
        concat: bool,
        activation: Callable[[Tensor], Tensor] | None = None,
        dropout: float = 0.0,
        index: int = 0,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.width, self.concat = heads, width, concat
        self.linear = nn.Linear(in_dim, heads * width, bias=False)
        self.attention_src = nn.Parameter(torch.empty(heads, width))
        self.attention_dst = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.zeros(heads * width if concat else width))
        self.edge_dropout = EdgeDropout(dropout, index)
        self.self_dropout = SelfDropout(dropout, index)
        self.activation = activation
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_normal_(self.linear.weight, gain)
        nn.init.xavier_normal_(self.attention_src, gain)
        nn.init.xavier_normal_(self.attention_dst, gain)
        self.edge_dim = edge_dim
        if edge_dim:
            self.edge_linear = edge_linear(edge_dim, heads)

    def input_weights(self) -> Mapping[str, int]:
        """See :class:`Layer`."""
        return {"linear.weight": 1}

    def project(self, h_src: Tensor) -> Tensor:
        """[n, heads, width]: the rows as each head sees them."""
        out: Tensor = self.linear(h_src)
        return out.view(h_src.shape[0], self.heads, self.width)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, heads, width]: rows weighted by attention, each destination's own included."""
        z_dst = self.project(h_dst)
        src_term = (z_src * self.attention_src).sum(-1)
        dst_term = (z_dst * self.attention_dst).sum(-1)
        own_term = (z_dst * self.attention_src).sum(-1)
        logits = edge_add(block, src_term, dst_term)
        if self.edge_dim:
            logits = logits + self.edge_term(block, logits.dtype)
        logits = functional.leaky_relu(logits, NEGATIVE_SLOPE)
        if not block.equally_likely:
            logits = logits + log_importance(block, logits.dtype).unsqueeze(-1)
        self_logits = functional.leaky_relu(own_term + dst_term, NEGATIVE_SLOPE)
        attention, own = edge_softmax_with_self(block, logits, self_logits)
        attention = self.edge_dropout(block, attention)
        own = self.self_dropout(block, own)
        return weighted_sum(block, z_src, attention) + own.unsqueeze(-1) * z_dst

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, heads * width] or [num_dst, width]: heads joined, bias, activation."""
        joined = combined.flatten(1) if self.concat else combined.mean(1)
        return self.activate(joined + self.bias)


class GAT(GNN):
    """A stack of GAT layers with ELU between them; ``dropout`` also applies to the attention.

    ``hidden`` is the width per head: hidden layers are ``heads * hidden`` wide, heads side by
    side; the last layer averages ``heads`` heads of width ``out_dim``.
    """

    def __init__(
        self,
        *,
        in_dim: int,
        out_dim: int,
        layers: int,
        hidden: int,
        heads: int,
        dropout: float,
        edge_dim: int = 0,
    ) -> None:
        stack: list[AttentionLayer] = []
        for index in range(layers):
            last = index == layers - 1
            stack.append(
                GATLayer(
                    in_dim if index == 0 else hidden * heads,
                    out_dim if last else hidden,
                    heads,
                    concat=not last,
                    activation=None if last else functional.elu,
                    dropout=dropout,
                    index=index,
                    edge_dim=edge_dim,
                )
            )
        super().__init__(stack, dropout)


def log_importance(block: Block, dtype: torch.dtype) -> Tensor:
    """[edges]: log of each inverse probability over their mean among its destination's edges."""
    sampled = block.sampled_degree().repeat_interleave(
        block.edges_per_destination(), output_size=block.num_edges
    )
    return (block.mean_weights(torch.float64) * sampled).log().to(dtype)
