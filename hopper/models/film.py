"""GNN-FiLM (Brockschmidt, GNN-FiLM: GNNs with Feature-wise Linear Modulation, ICML 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.models.layer import Algebra, Layer, init_linears
from hopper.models.residual import ResidualGNN
from hopper.ops import destination_rows, edge_sum, source_rows


class FiLMLayer(Layer):
    """Scales and shifts messages, feature by feature, as the destination decides.

    With ``(gamma_v, beta_v) = g(h_v)``, g linear, the new row is
    ``W_out (mean_u relu(gamma_v * W h_u + beta_v) + relu(gamma'_v * W' h_v + beta'_v)) + b``.

    - The second term is a self loop with weights (W', g') of its own. It needs no loop among the
      block's edges.
    - The mean is over the sampled in-neighbours, weighted by their inverse probabilities if those
      differ. The mean of no neighbours is zero. The paper sums, and offers to normalise by the
      number of edges. A mean keeps the messages of hubs from dominating the residual, at any
      fanout.
    - W_out is not in the paper. The sum after ReLU has no negative values, and a residual that can
      only grow trains badly.

    The activation follows the modulation on each edge, so partial sums need the destination's gamma
    and beta, and messages are stored: four arrays of [edges, out_dim] for the backward pass.
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
        init_linears((self.linear, self.self_linear), nn.init.calculate_gain("relu"))
        init_linears([self.out_linear])
        for modulation in (self.modulation, self.self_modulation):
            # The modulation begins as the identity for all destinations.
            nn.init.zeros_(modulation.weight)
            nn.init.zeros_(modulation.bias)
            nn.init.ones_(modulation.bias[:out_dim])

    def project(self, h_src: Tensor) -> Tensor:
        """Return ``W h_u``, [n, out_dim]."""
        return self.linear(h_src)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Average the modulated messages to [num_dst, out_dim]."""
        gamma, beta = self.modulation(h_dst).chunk(2, -1)
        scaled = destination_rows(block, gamma) * source_rows(block, z_src)
        messages = torch.relu(scaled + destination_rows(block, beta))
        return edge_sum(block, messages, block.mean_weights(messages.dtype))

    def input_weights(self) -> Mapping[str, int]:
        """Return all weights, since they multiply rows of sources or of destinations."""
        names = ("linear", "modulation", "self_modulation", "self_linear")
        return {f"{name}.weight": 1 for name in names}

    def own_weights(self) -> Sequence[Tensor]:
        """Return the weights of the modulations and of the self loop."""
        linears = (self.modulation, self.self_modulation, self.self_linear)
        return tuple(linear.weight for linear in linears)

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Add the self loop's message, and multiply by ``W_out``, to [num_dst, out_dim]."""
        gamma, beta = self.self_modulation(h_dst).chunk(2, -1)
        self_message = torch.relu(gamma * self.self_linear(h_dst) + beta)
        return self.out_linear(combined + self_message)


class FiLM(ResidualGNN):
    """A residual stack of FiLM layers, usually ten; ``heads`` is not used."""

    layer_class: ClassVar[type[Layer]] = FiLMLayer
