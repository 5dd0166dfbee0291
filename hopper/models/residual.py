"""Deep stacks: residual connections around normalised, activated input.

The order norm, activation, dropout, layer, addition is "res+" of Li, Xiong, Thabet and Ghanem,
DeeperGCN, 2020 (for images: He et al., Identity Mappings, ECCV 2016): nothing stands on the path
from a row to the sum, so gradients reach the first layer undiminished.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hopper.graph.block import Nodes
from hopper.models.gnn import GNN
from hopper.models.layer import Layer
from hopper.ops import drop_rows


class ResidualGNN(GNN):
    """``h' = h + layer(dropout(relu(norm(h))))`` in every layer but the first.

    - The first layer changes the width from the features' to ``hidden``, and has neither norm nor
      residual: features are not normalised for the user, and there is no row of the new width to
      add. A projection shortcut would be a second weight on the term that the layer has for the
      destination itself.
    - The last layer keeps the width ``hidden`` and its residual; the roots' rows then pass norm,
      ReLU, dropout and a linear classifier, which is part of the last step.

    The norm is layer norm: over the features of one row, so a row has the same value whatever
    rows are computed with it. Published forms use batch norm, whose statistics are over all rows
    of a pass and would differ between engines.

    Parameters
    ----------
    layers: the first one from the features' width, all others from ``hidden``, to ``hidden``;
        without activations of their own behind them.
    hidden: width of the rows between layers.
    out_dim: width of the logits.
    dropout: probability in [0, 1) for the input rows of every layer and of the classifier, never
        for the residual.
    """

    def __init__(
        self, layers: Sequence[Layer], *, hidden: int, out_dim: int, dropout: float = 0.0
    ) -> None:
        super().__init__(layers, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in layers)
        self.classifier = nn.Linear(hidden, out_dim)
        self.dropout = dropout
        nn.init.xavier_uniform_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """[n, width of the layer's input]: norm and ReLU (not of features), then dropout."""
        read = rows if index == 0 else self._activated(index - 1, rows)
        return super().prepare(index, nodes, read)

    def finish(self, index: int, nodes: Nodes, h_dst: Tensor, out: Tensor) -> Tensor:
        """[n, hidden]: the sum; from the last layer [n, out_dim], the logits."""
        rows = out if index == 0 else h_dst + out
        if index < len(self.layers) - 1:
            return rows
        rows = self._activated(index, rows)
        if self.training:
            rows = drop_rows(nodes, rows, self.dropout, len(self.layers))
        logits: Tensor = self.classifier(rows)
        return logits

    def _activated(self, norm: int, rows: Tensor) -> Tensor:
        return torch.relu(self.norms[norm](rows))
