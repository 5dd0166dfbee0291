"""Joining rows that were computed in several parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def join_parts(parts: Sequence[Tensor], places: Sequence[Tensor] = ()) -> Tensor:
    """Join parts into one tensor, with a single copy forward and backward.

    Parameters
    ----------
    parts: [n, ...] each, at least one.
    places: for the first parts, [n] int64 each, the row numbers of their rows. All places together
        are a range that begins with 0.

    Returns
    -------
    [sum of n, ...]: the first parts' rows at their places, then the other parts in their order.
    """
    if len(parts) == 1 and not places:
        return parts[0]
    if not places:
        return torch.cat(list(parts))
    joined: Tensor = _Join.apply(tuple(places), *parts)
    return joined


class _Join(torch.autograd.Function):
    """Joins parts of a matrix of rows."""

    @staticmethod
    def forward(ctx: Any, places: tuple[Tensor, ...], *parts: Tensor) -> Tensor:
        """Copy every part to its places; parts without places follow at the end."""
        ctx.places, ctx.sizes = places, [len(part) for part in parts]
        out = parts[0].new_empty(sum(ctx.sizes), *parts[0].shape[1:])
        for part, part_places in zip(parts, places, strict=False):
            out.index_copy_(0, part_places, part)
        start = sum(ctx.sizes[: len(places)])
        for part in parts[len(places) :]:
            out[start : start + len(part)] = part
            start += len(part)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Divide the gradient among the parts."""
        scattered = [gradient.index_select(0, places) for places in ctx.places]
        sizes = ctx.sizes[len(scattered) :]
        appended = gradient[len(gradient) - sum(sizes) :].split(sizes) if sizes else ()
        return (None, *scattered, *appended)
