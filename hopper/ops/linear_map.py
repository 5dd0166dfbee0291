"""Linear maps of one tensor or of each of two, with the maps that compute their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Map = Callable[[Tensor], Tensor]
Bilinear = Callable[[Tensor, Tensor], Tensor]


def linear_map(x: Tensor, apply: Map, transposed: Map) -> Tensor:
    """Compute ``apply(x)``, whose gradient for x is ``transposed`` of the result's gradient."""
    return _LinearMap.apply(x, apply, transposed)


def bilinear_map(x: Tensor, y: Tensor, apply: Bilinear, to_x: Bilinear, to_y: Bilinear) -> Tensor:
    """Compute ``apply(x, y)``, whose gradients are ``to_x(grad, y)`` and ``to_y(x, grad)``; each is
    computed only if its input requires it."""
    return _BilinearMap.apply(x, y, apply, to_x, to_y)


class _LinearMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Map, transposed: Map) -> Tensor:
        ctx.transposed = transposed
        return apply(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(grad), None, None


class _BilinearMap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, apply: Bilinear, to_x: Bilinear, to_y: Bilinear
    ) -> Tensor:
        ctx.to_x, ctx.to_y = to_x, to_y
        needs_x, needs_y = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if needs_y else None, y if needs_x else None)
        return apply(x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, y = ctx.saved_tensors
        of_x = None if y is None else ctx.to_x(grad, y)
        of_y = None if x is None else ctx.to_y(x, grad)
        return of_x, of_y, None, None, None
