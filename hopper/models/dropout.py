"""Dropout modules for models, instead of ``torch.nn.Dropout``.

``torch.nn.Dropout`` draws from a stream of random numbers, so its mask depends on which rank
computes a row and when. These modules draw the same mask wherever a row is computed
(docs/inside/dropout.md).
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
    """Dropout of the input rows of a layer, keyed by node; the identity in evaluation mode.

    Parameters
    ----------
    p: the probability, in [0, 1).
    layer: the index of the layer, from 0. Layers must not share an index.

    Raises
    ------
    ConfigError: the probability is out of range.
    """

    def forward(self, nodes: Nodes, rows: Tensor) -> Tensor:
        """Apply dropout to the rows [n, ...] of nodes."""
        return drop_rows(nodes, rows, self.p, self.layer) if self.training else rows


class EdgeDropout(_CounterDropout):
    """Dropout of values per edge and head; parameters as in :class:`RowDropout`."""

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply dropout to the values [edges, ...] of edges."""
        return drop_edges(block, x, self.p, self.layer) if self.training else x


class SelfDropout(_CounterDropout):
    """Dropout of a destination's attention to itself per head; parameters as in
    :class:`RowDropout`."""

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply dropout to the values [num_dst, ...] of destinations."""
        return drop_self(block, x, self.p, self.layer) if self.training else x
