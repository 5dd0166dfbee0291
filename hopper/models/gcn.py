"""GCN (Kipf and Welling, Semi-Supervised Classification with GCNs, ICLR 2017, eq. 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.models.gnn import GNN, make_layers
from hopper.models.layer import Activation, SumLayer, split_edges


class GCNLayer(SumLayer):
    """Sums neighbours and the node itself, normalised by degrees.

    With full-graph degrees d, it computes ``sum_u h_u W / sqrt((d_out(u) + 1)(d_in(v) + 1)) +
    h_v W / (d_in(v) + 1) + b``, which is eq. 2 on the graph with self loops. Sampled neighbours are
    also weighted by their inverse probability (node-wise ``d_in(v) / sampled(v)``), which keeps the
    expectation of the sum. Degrees are those of the full graph, because a block's source degrees
    depend on which roots share the block.

    W is applied before the aggregation if that makes rows narrower, and after it otherwise.
    Features e_uv of edges are part of messages, ``h_u W + e_uv W_e``, with the same weights. The
    node itself has none.

    Parameters
    ----------
    activation: the function that is applied to the new rows; None in the last layer.
    project_first: whether W comes first; None = decide by the widths.
    edge_dim: the width of features of edges; 0 = the layer reads none.
    """

    reads_destination = True
    is_linear: ClassVar[bool] = True

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        activation: Activation | None = None,
        project_first: bool | None = None,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.activation = activation
        self.project_first = in_dim > out_dim if project_first is None else project_first
        nn.init.xavier_uniform_(self.weight)
        self._add_edge_linear(edge_dim, out_dim)

    def project(self, h_src: Tensor) -> Tensor:
        """Multiply rows by W, to [n, out_dim], if W comes first; otherwise return them."""
        return h_src @ self.weight if self.project_first else h_src

    def input_weights(self) -> Mapping[str, int]:
        """Return W, the only weight that multiplies input rows."""
        return {"weight": 0}

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return ``1 / sqrt((d_out(u) + 1)(d_in(v) + 1))`` over the probability, [edges]."""
        source = (block.out_degree() + 1).double().rsqrt()
        target = (block.in_degree() + 1).double().rsqrt()
        weights = block.inverse_probability(torch.float64) * block.to_edges(target)
        return (weights * source.index_select(0, block.indices)).to(dtype)

    def own_term(self, block: Block, h_dst: Tensor) -> Tensor:
        """Divide each destination's own row by its degree plus one, [num_dst, width of z_src]."""
        share = (block.in_degree() + 1).double().reciprocal().to(h_dst.dtype)
        return self.project(h_dst) * share.unsqueeze(-1)

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Apply W if it comes last, add W_e's term and the bias, and apply the activation."""
        rows, edges = split_edges(combined, self.edge_dim)
        out = rows if self.project_first else rows @ self.weight
        if self.edge_dim:
            out = out + self.edge_linear(edges)
        return self.activate(out + self.bias)


class GCN(GNN):
    """A stack of GCN layers with ReLU between them; ``heads`` is not used."""

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
        widths = (in_dim, *[hidden] * (layers - 1), out_dim)
        super().__init__(make_layers(GCNLayer, widths, edge_dim=edge_dim), dropout)
