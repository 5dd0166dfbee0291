"""An unchanged model of PyTorch Geometric's convolutions: ``model.name = "pyg_model:PygSage"``.

Hopper knows nothing of the parts of a module that has only a ``forward()``. Only the engines that
move input rows can train it: ``model_centric``, ``hop``, ``zero_hop``, ``locality``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from hopper import Block


class PygSage(nn.Module):
    """GraphSAGE of ``SAGEConv`` layers. Hopper passes these keywords to every model."""

    def __init__(
        self, in_dim: int, out_dim: int, layers: int, hidden: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        widths = [in_dim, *[hidden] * (layers - 1), out_dim]
        self.convs = nn.ModuleList(SAGEConv(*in_and_out) for in_and_out in pairwise(widths))

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """[roots, out]: logits."""
        for conv, block in zip(self.convs, blocks, strict=True):
            x = conv((x, x[: block.num_dst]), block.to_pyg())
            x = x if block is blocks[-1] else x.relu()
        return x
