"""Rows that were made in several pieces, put together once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def join_parts(parts: Sequence[Tensor], places: Sequence[Tensor] = ()) -> Tensor:
    """[sum of n, ...]: the first parts in their places, and behind them the others in their order.

    Parameters
    ----------
    parts: [n, ...] each, at least one.
    places: of the first parts, [n] int64 each: where their rows are; all places of these parts
        together are a range that begins with 0.
    """
    if len(parts) == 1 and not places:
        return parts[0]
    if not places:
        return torch.cat(list(parts))
    joined: Tensor = _Join.apply(tuple(places), *parts)
    return joined


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, places: tuple[Tensor, ...], *parts: Tensor) -> Tensor:
        ctx.places, ctx.sizes = places, [len(part) for part in parts]
        out = parts[0].new_empty(sum(ctx.sizes), *parts[0].shape[1:])
        for part, own in zip(parts, places, strict=False):
            out.index_copy_(0, own, part)
        behind = sum(ctx.sizes[: len(places)])
        for part in parts[len(places) :]:
            out[behind : behind + len(part)] = part
            behind += len(part)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        placed = [gradient.index_select(0, own) for own in ctx.places]
        sizes = ctx.sizes[len(placed) :]
        behind = gradient[len(gradient) - sum(sizes) :].split(sizes) if sizes else ()
        return (None, *placed, *behind)
