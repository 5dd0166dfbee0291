"""GAT (Velickovic et al., Graph Attention Networks, ICLR 2018, section 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopper.graph.block import Block
from hopper.models.dropout import EdgeDropout, SelfDropout
from hopper.models.gnn import GNN
from hopper.models.layer import Activation, Algebra, AttentionLayer
from hopper.ops import edge_add, edge_softmax_with_self, weighted_sum

NEGATIVE_SLOPE = 0.2


class GATLayer(AttentionLayer):
    """Attention over the sampled in-neighbours and the node itself.

    With ``z = W h`` per head, edge (u, v) has the logit ``leaky_relu(a_src . z_u + a_dst . z_v)``
    (eq. 3, with the attention vector in two halves), and v itself has
    ``leaky_relu(a_src . z_v + a_dst . z_v)``. The softmax (eq. 2) is over the edges of v and v
    itself. This is GAT on a graph with an added self loop for each node, but the block's edges need
    no such loop. A self loop of the graph counts in addition.

    The softmax is over sampled neighbours only. If the sampler draws some neighbours of v with a
    higher probability than others, each exponential is multiplied by its neighbour's inverse
    probability over the mean of these (docs/howto/samplers.md).

    Features e_uv of edges add ``a_edge . e_uv`` to the argument of leaky_relu, for each head. The
    term of v itself has no features.

    The attention vectors begin at zero, so that all neighbours weigh alike at first. Drawn at
    random, they may let the softmax of a node with many neighbours choose one of them before
    anything is learned (docs/results/distdglv2.md, How GAT begins).

    Parameters
    ----------
    width: the output width per head.
    concat: whether heads are concatenated (eq. 5), or averaged (eq. 6, the last layer).
    dropout: the probability of dropping the attention of an edge and head.
    index: the index of the layer, for the key of dropout.
    edge_dim: the width of features of edges; 0 = the layer reads none.
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
        activation: Activation | None = None,
        dropout: float = 0.0,
        index: int = 0,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.width, self.concat = heads, width, concat
        self.linear = nn.Linear(in_dim, heads * width, bias=False)
        self.attention_src = nn.Parameter(torch.zeros(heads, width))
        self.attention_dst = nn.Parameter(torch.zeros(heads, width))
        self.bias = nn.Parameter(torch.zeros(heads * width if concat else width))
        self.edge_dropout = EdgeDropout(dropout, index)
        self.self_dropout = SelfDropout(dropout, index)
        self.activation = activation
        nn.init.xavier_normal_(self.linear.weight, nn.init.calculate_gain("relu"))
        self._add_edge_linear(edge_dim, heads)

    def input_weights(self) -> Mapping[str, int]:
        """Return the only weight that multiplies input rows."""
        return {"linear.weight": 1}

    def project(self, h_src: Tensor) -> Tensor:
        """Project rows for each head, to [n, heads, width]."""
        return self.linear(h_src).view(h_src.shape[0], self.heads, self.width)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Sum rows by attention, with each destination's own, to [num_dst, heads, width]."""
        z_dst = self.project(h_dst)
        src_term = (z_src * self.attention_src).sum(-1)
        dst_term = (z_dst * self.attention_dst).sum(-1)
        self_term = (z_dst * self.attention_src).sum(-1)
        logits = edge_add(block, src_term, dst_term)
        if self.edge_dim:
            logits = logits + self.edge_term(block, logits.dtype)
        logits = functional.leaky_relu(logits, NEGATIVE_SLOPE)
        if not block.equally_likely:
            logits = logits + log_importance(block, logits.dtype).unsqueeze(-1)
        self_logits = functional.leaky_relu(self_term + dst_term, NEGATIVE_SLOPE)
        attention, self_attention = edge_softmax_with_self(block, logits, self_logits)
        attention = self.edge_dropout(block, attention)
        self_attention = self.self_dropout(block, self_attention)
        return weighted_sum(block, z_src, attention) + self_attention.unsqueeze(-1) * z_dst

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Concatenate heads, to [num_dst, heads * width], or average them, to [num_dst, width]; add
        the bias and apply the activation."""
        rows = combined.flatten(1) if self.concat else combined.mean(1)
        return self.activate(rows + self.bias)


class GAT(GNN):
    """A stack of GAT layers with ELU between them; ``dropout`` also applies to the attention.

    ``hidden`` is the width per head. Hidden layers concatenate heads and are ``heads * hidden``
    wide. The last layer averages ``heads`` heads of width ``out_dim``.
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
    """Return the log [edges] of each edge's inverse probability, over its destination's mean."""
    sampled = block.to_edges(block.sampled_degree())
    return (block.mean_weights(torch.float64) * sampled).log().to(dtype)
