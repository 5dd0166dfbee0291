"""Deep stacks with residual connections around normalised, activated input.

The order norm, activation, dropout, layer, addition is "res+" of Li, Xiong, Thabet and Ghanem,
DeeperGCN, 2020 (for images: He et al., Identity Mappings, ECCV 2016). The path from a row to the
sum contains no operation, so gradients reach the first layer undiminished.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from hopper.graph.block import Nodes
from hopper.models.gcn import GCNLayer
from hopper.models.gnn import GNN
from hopper.models.layer import Layer, init_linears
from hopper.ops import drop_rows


class ResidualGNN(GNN):
    """Computes ``h' = h + layer(dropout(relu(norm(h))))`` in every layer except the first.

    - The first layer changes the width from the features' to ``hidden``. It has no norm, because
      features are not normalised for the user, and no residual, because there is no row of the new
      width to add. A projection for the residual would be a second weight of the destination's own
      row.
    - The last layer keeps the width ``hidden`` and its residual. Norm, ReLU, dropout and a linear
      classifier follow, as part of the last step.

    The norm is layer norm. It is over the features of one row, so the rows of a pass do not affect
    each other. Published forms use batch norm, whose statistics are over all rows of a pass and
    would differ between engines.

    Parameters
    ----------
    in_dim, out_dim: the widths of features and of logits.
    layers: the number of layers.
    hidden: the width of the rows between layers.
    heads: not used.
    dropout: the probability in [0, 1) of dropping input rows of every layer and of the classifier.
        The residual is never dropped.
    """

    layer_class: ClassVar[type[Layer]]
    """the class of layers without activations, called with the widths of input and output"""

    def __init__(
        self, *, in_dim: int, out_dim: int, layers: int, hidden: int, heads: int, dropout: float
    ) -> None:
        widths = [in_dim, *[hidden] * layers]
        super().__init__([self.layer_class(*pair) for pair in pairwise(widths)], dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.classifier = nn.Linear(hidden, out_dim)
        self.dropout = dropout
        init_linears([self.classifier])

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """Apply norm and ReLU, except to features, and then dropout."""
        input_rows = rows if index == 0 else self._activate(index - 1, rows)
        return super().prepare(index, nodes, input_rows)

    def finish(self, index: int, nodes: Nodes, h_dst: Tensor, out: Tensor) -> Tensor:
        """Add the residual, to [n, hidden]; in the last layer return the logits [n, out_dim]."""
        rows = out if index == 0 else h_dst + out
        if index < len(self.layers) - 1:
            return rows
        rows = self._activate(index, rows)
        if self.training:
            rows = drop_rows(nodes, rows, self.dropout, len(self.layers))
        return self.classifier(rows)

    def _activate(self, norm: int, rows: Tensor) -> Tensor:
        return torch.relu(self.norms[norm](rows))


class DeepGCN(ResidualGNN):
    """DeepGCN: a residual stack of GCN layers, usually seven; ``heads`` is not used.

    It is the residual GCN (ResGCN) of Li, Mueller, Thabet and Ghanem, DeepGCNs: Can GCNs Go as Deep
    as CNNs?, ICCV 2019, section 3.2, in the order of operations that the authors found better
    later, with Kipf and Welling's aggregation on a given graph.

    One layer reads each block, so the stack reads as many hops as it has layers. The first layer
    also encodes the features. Its weight is applied at the sources where that makes rows narrower.
    A linear encoder before it would have no effect beyond that weight.
    """

    layer_class: ClassVar[type[Layer]] = GCNLayer
