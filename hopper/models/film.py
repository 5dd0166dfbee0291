"""GNN-FiLM (Brockschmidt, GNN-FiLM: GNNs with Feature-wise Linear Modulation, ICML 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.models.layer import Algebra, Layer
from hopper.models.residual import ResidualGNN
from hopper.ops import modulated_sum


class FiLMLayer(Layer):
    """Messages scaled and shifted, feature by feature, as the destination asks.

    With ``(gamma_v, beta_v) = g(h_v)``, g linear, the new row is
    ``W_out (mean_u relu(gamma_v * W h_u + beta_v) + relu(gamma'_v * W' h_v + beta'_v)) + b``.

    - The second term is the self loop, an edge type with weights (W', g') of its own, and needs
      no loop among the block's edges.
    - The mean is over the sampled in-neighbours, weighted by the inverse of their probabilities
      where those differ; the mean of none is zero. The paper sums and offers normalising by the
      number of edges; a mean keeps hubs from drowning the residual, at any fanout.
    - W_out is not in the paper. ReLU leaves the sum without negative values, and a residual that
      can only grow is a poor one.

    The activation stands on each edge, behind the modulation, so partial sums can be formed only
    where the destination's gamma and beta are known. They are formed without storing the messages
    (:func:`hopper.ops.modulated_sum`).
    """

    algebra: ClassVar[Algebra] = "mean"
    reads_destination: ClassVar[bool] = True

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        self.modulation = nn.Linear(in_dim, 2 * out_dim)
        self.self_linear = nn.Linear(in_dim, out_dim, bias=False)
        self.self_modulation = nn.Linear(in_dim, 2 * out_dim)
        self.out_linear = nn.Linear(out_dim, out_dim)
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.linear.weight, gain)
        nn.init.xavier_uniform_(self.self_linear.weight, gain)
        nn.init.xavier_uniform_(self.out_linear.weight)
        nn.init.zeros_(self.out_linear.bias)
        for modulation in (self.modulation, self.self_modulation):
            # At first nothing is modulated: scale one, shift zero, whatever the destination.
            nn.init.zeros_(modulation.weight)
            nn.init.zeros_(modulation.bias)
            nn.init.ones_(modulation.bias[:out_dim])

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim]: ``W h_u``."""
        out: Tensor = self.linear(h_src)
        return out

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out_dim]: the mean of the modulated messages."""
        gamma, beta = self.modulation(h_dst).chunk(2, -1)
        return modulated_sum(block, z_src, gamma, beta, block.mean_weights(z_src.dtype))

    def input_weights(self) -> Mapping[str, int]:
        """See :class:`Layer`."""
        names = ("linear", "modulation", "self_modulation", "self_linear")
        return {f"{each}.weight": 1 for each in names}

    def own_weights(self) -> Sequence[Tensor]:
        """See :class:`Layer`."""
        own = (self.modulation, self.self_modulation, self.self_linear)
        return tuple(each.weight for each in own)

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, out_dim]: plus the self loop's message, times ``W_out``."""
        gamma, beta = self.self_modulation(h_dst).chunk(2, -1)
        own = torch.relu(gamma * self.self_linear(h_dst) + beta)
        out: Tensor = self.out_linear(combined + own)
        return out


class FiLM(ResidualGNN):
    """A residual stack of FiLM layers, usually ten; ``heads`` is not used."""

    def __init__(
        self, *, in_dim: int, out_dim: int, layers: int, hidden: int, heads: int, dropout: float
    ) -> None:
        stack = [FiLMLayer(in_dim if index == 0 else hidden, hidden) for index in range(layers)]
        super().__init__(stack, hidden=hidden, out_dim=out_dim, dropout=dropout)
