"""DeepGCN (Li, Mueller, Thabet and Ghanem, DeepGCNs: Can GCNs Go as Deep as CNNs?, ICCV 2019).

Section 3.2's residual GCN (ResGCN), in the order that the authors found better afterwards
(:mod:`hopper.models.residual`), with Kipf and Welling's aggregation on a graph that is given.
"""

from __future__ import annotations

from hopper.models.gcn import GCNLayer
from hopper.models.residual import ResidualGNN


class DeepGCN(ResidualGNN):
    """A residual stack of GCN layers, usually seven; ``heads`` is not used.

    Each block is read by one layer, so the stack sees as many hops as it has layers. The first
    layer is also the encoder of the features: its weight is applied at the sources wherever that
    makes rows narrower. A linear encoder before it would only be multiplied into that weight.
    """

    def __init__(
        self, *, in_dim: int, out_dim: int, layers: int, hidden: int, heads: int, dropout: float
    ) -> None:
        stack = [GCNLayer(in_dim if index == 0 else hidden, hidden) for index in range(layers)]
        super().__init__(stack, hidden=hidden, out_dim=out_dim, dropout=dropout)
