"""Parts of models as a user may write them, for the ranks of tests to import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hopper.graph.block import Block, Nodes
from hopper.models import GNN, Layer
from hopper.models.combination import Combination, SumOfRelations
from hopper.models.dropout import EdgeDropout
from hopper.models.layer import SumLayer
from hopper.models.sage import SAGELayer
from hopper.ops import copy_sum, weighted_sum


class Dropping(Layer):
    """A mean whose edges are dropped by keys of relation, destination and position."""

    reads_destination = True

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        self.scale = nn.Linear(in_dim, out_dim)
        self.edges = EdgeDropout(0.4, 0)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim]."""
        return self.linear(h_src)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out_dim]."""
        weights = self.edges(block, block.mean_weights(z_src.dtype))
        return torch.sigmoid(self.scale(h_dst)) * weighted_sum(block, z_src, weights)


class Smooth(Layer):
    """A smooth maximum. What the parts of a relation yield is not added up."""

    reads_destination = False

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim]."""
        return self.linear(h_src)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out_dim]: zero without edges."""
        return torch.log1p(copy_sum(block, z_src.exp()))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """[num_dst, out_dim]."""
        return torch.log1p(sum(torch.expm1(part) for part in parts))


class Bounded(SumLayer):
    """Bounds its sums, so that sums of parts are not the sum of the whole."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim]."""
        return self.linear(h_src)

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """[edges]."""
        return block.mean_weights(dtype)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out_dim]."""
        return torch.tanh(super().aggregate(block, z_src, h_dst))


class BoundedSum(SumOfRelations):
    """Sums what every relation says, after bounding it."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def partial(self, block: Block, aggregated: Tensor) -> Tensor:
        """[num_dst, width]."""
        return torch.tanh(aggregated)


class AttentionOverRelations(Combination):
    """A sum over relations, weighted by a softmax over them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, 1)

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """[num_dst, width]."""
        rows = torch.stack(list(partials), 1)
        return (torch.softmax(self.query(torch.tanh(rows)), 1) * rows).sum(1)


class DroppingInParts(Dropping):
    """Adds up parts, where a destination's edges lie on several servers."""

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """[num_dst, out_dim]: the sum."""
        return torch.stack(list(parts)).sum(0)


class Gated(Layer):
    """A mean of messages, each times a gate that is computed from the features of its edge.

    A relation whose edges have no features has no gates.
    """

    reads_destination = False

    def __init__(self, in_dim: int, out_dim: int, edge_dim: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        self.edge_dim = edge_dim
        if edge_dim:
            self.edge_linear = nn.Linear(edge_dim, 1)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim]."""
        return self.linear(h_src)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out_dim]."""
        weights = block.mean_weights(z_src.dtype)
        if self.edge_dim:
            gates = self.edge_linear(self.edge_features(block, z_src.dtype)).squeeze(1)
            weights = weights * torch.sigmoid(gates)
        return weighted_sum(block, z_src, weights)


class Prepared(GNN):
    """Rows of the first layer are read whole."""

    def __init__(self, *, in_dim: int, out_dim: int, **_others: Any) -> None:
        super().__init__([SAGELayer(in_dim, out_dim)])

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        return torch.nn.functional.normalize(super().prepare(index, nodes, rows))


class Scaled(SAGELayer):
    """New rows are not linear in those that are read."""

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        return torch.nn.functional.normalize(super().update(h_dst, combined))


class Other(GNN):
    """The first layer does something else than the class that it is derived from."""

    def __init__(self, *, in_dim: int, out_dim: int, **_others: Any) -> None:
        super().__init__([Scaled(in_dim, out_dim)])
