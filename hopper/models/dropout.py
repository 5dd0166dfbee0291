"""Dropout modules to use in models instead of ``torch.nn.Dropout``.

``torch.nn.Dropout`` draws from a stream of random numbers, so its mask depends on which rank
computes a row and when; these draw the same mask wherever a row is computed (docs/dropout.md).
"""

from __future__ import annotations

from torch import Tensor, nn

from hopper.graph.block import Block, Nodes
from hopper.ops import drop_edges, drop_rows, drop_self
from hopper.ops.counter_mask import drop_threshold


class _CounterDropout(nn.Module):
    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        drop_threshold(p)
        self.p = p
        self.layer = layer

    def extra_repr(self) -> str:
        return f"p={self.p}, layer={self.layer}"


class RowDropout(_CounterDropout):
    """Dropout on the input rows of a layer, keyed by node; the identity in evaluation mode.

    Parameters
    ----------
    p: probability in [0, 1); ConfigError otherwise.
    layer: index of the layer, first layer 0; layers must not share one.
    """

    def forward(self, nodes: Nodes, rows: Tensor) -> Tensor:
        """[n, ...]: the rows of these nodes after dropout."""
        return drop_rows(nodes, rows, self.p, self.layer) if self.training else rows


class EdgeDropout(_CounterDropout):
    """Dropout on values per edge and head; parameters as :class:`RowDropout`."""

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[edges, ...]: the values after dropout."""
        return drop_edges(block, x, self.p, self.layer) if self.training else x


class SelfDropout(_CounterDropout):
    """Dropout on a destination's own attention per head; parameters as :class:`RowDropout`."""

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, ...]: the values after dropout."""
        return drop_self(block, x, self.p, self.layer) if self.training else x
