"""DeepGCN (Li, Mueller, Thabet and Ghanem, DeepGCNs: Can GCNs Go as Deep as CNNs?, ICCV 2019).

It is the residual GCN (ResGCN) of section 3.2, in the order of operations that the authors found
better later (:mod:`hopper.models.residual`), with Kipf and Welling's aggregation on a given graph.
"""

from __future__ import annotations

from hopper.models.gcn import GCNLayer
from hopper.models.residual import ResidualGNN


class DeepGCN(ResidualGNN):
    """A residual stack of GCN layers, usually seven; ``heads`` is not used.

    One layer reads each block, so the stack reads as many hops as it has layers. The first layer
    also encodes the features. Its weight is applied at the sources where that makes rows narrower.
    A linear encoder before it would have no effect beyond that weight.
    """

    def __init__(
        self, *, in_dim: int, out_dim: int, layers: int, hidden: int, heads: int, dropout: float
    ) -> None:
        stack = [GCNLayer(in_dim if index == 0 else hidden, hidden) for index in range(layers)]
        super().__init__(stack, hidden=hidden, out_dim=out_dim, dropout=dropout)
