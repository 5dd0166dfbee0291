"""Linear maps of one tensor, each with the map that computes its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Map = Callable[[Tensor], Tensor]


def linear_map(x: Tensor, apply: Map, transposed: Map) -> Tensor:
    """Compute ``apply(x)``, whose gradient for x is ``transposed`` of the result's gradient."""
    return _LinearMap.apply(x, apply, transposed)


class _LinearMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Map, transposed: Map) -> Tensor:
        ctx.transposed = transposed
        return apply(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(grad), None, None
