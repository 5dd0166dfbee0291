"""GraphSAGE, mean (Hamilton, Ying and Leskovec, NeurIPS 2017, algorithm 1, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.models.gnn import GNN, layer_widths
from hopper.models.layer import Algebra, SumLayer
from hopper.ops import copy_mean


class SAGELayer(SumLayer):
    """``W_self h_v + W_neigh mean(h_u) + b`` over the sampled in-neighbours u of v.

    The mean of no neighbours is zero. Where the sampler draws some neighbours of v with a higher
    probability than others, the mean is weighted by inverse probabilities that are scaled to add up
    to 1 (docs/samplers.md). ``W_neigh`` is applied before the aggregation where that
    makes rows narrower, after it otherwise.

    Parameters
    ----------
    activation: applied to the new rows; None in the last layer.
    project_first: overrides the choice of order.
    """

    algebra: ClassVar[Algebra] = "mean"
    is_linear: ClassVar[bool] = True

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        project_first: bool | None = None,
    ) -> None:
        super().__init__()
        self.self_linear = nn.Linear(in_dim, out_dim)
        self.neighbor_linear = nn.Linear(in_dim, out_dim, bias=False)
        self.activation = activation
        self.project_first = in_dim > out_dim if project_first is None else project_first
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.self_linear.weight, gain)
        nn.init.xavier_uniform_(self.neighbor_linear.weight, gain)
        nn.init.zeros_(self.self_linear.bias)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim] where ``W_neigh`` comes first, else the rows themselves."""
        return self._neighbor(h_src) if self.project_first else h_src

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, width of z_src]: the mean over sampled in-neighbours."""
        if block.equally_likely:
            return copy_mean(block, z_src)
        return super().aggregate(block, z_src, h_dst)

    def own_weights(self) -> Sequence[Tensor]:
        """See :class:`Layer`."""
        return (self.self_linear.weight,)

    def input_weights(self) -> Mapping[str, int]:
        """See :class:`Layer`."""
        return {"self_linear.weight": 1, "neighbor_linear.weight": 1}

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """[edges]: those of a mean."""
        return block.mean_weights(dtype)

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, out_dim]: self term, ``W_neigh`` where it comes last, bias, activation."""
        own: Tensor = self.self_linear(h_dst)
        return self.activate(own + (combined if self.project_first else self._neighbor(combined)))

    def _neighbor(self, rows: Tensor) -> Tensor:
        out: Tensor = self.neighbor_linear(rows)
        return out


class GraphSAGE(GNN):
    """A stack of GraphSAGE layers with ReLU between them; ``heads`` is not used."""

    def __init__(
        self, *, in_dim: int, out_dim: int, layers: int, hidden: int, heads: int, dropout: float
    ) -> None:
        widths = layer_widths(in_dim, hidden, out_dim, layers)
        stack = [
            SAGELayer(a, b, activation=torch.relu if index < layers - 1 else None)
            for index, (a, b) in enumerate(widths)
        ]
        super().__init__(stack, dropout)
