"""A user-defined AGG_r for `model.name = "hgnn"`: a gate weighs each neighbour.

Every engine can train it, because the owners of rows project them and messages are added up
(docs/inside/typed-graphs.md). examples/heterogeneous.py runs it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.models import Layer
from hopper.ops import weighted_sum


class GatedAggregation(Layer):
    """The mean over sampled in-neighbours u of ``sigmoid(g . h_u) * W h_u``."""

    reads_destination = False

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        self.gate = nn.Linear(in_dim, 1)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim]: a neighbour's message."""
        return torch.sigmoid(self.gate(h_src)) * self.linear(h_src)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out_dim]: the mean of messages."""
        return weighted_sum(block, z_src, block.mean_weights(z_src.dtype))
