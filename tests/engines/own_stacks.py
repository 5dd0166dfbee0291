"""Stacks whose first layers cannot be divided."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hopper.graph.block import Nodes
from hopper.models import GNN
from hopper.models.sage import SAGELayer


class Normed(GNN):
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
