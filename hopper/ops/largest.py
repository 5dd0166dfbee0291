"""The maximum over each destination's sources."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.graph.block import Edges
from hopper.ops import selection
from hopper.ops.csr import destinations, edges_to_sources
from hopper.ops.message_passing import check_rows, gather_rows
from hopper.ops.precision import in_full
from hopper.ops.torch_kernels import Kernels, segments


def copy_max(block: Edges, x: Tensor) -> Tensor:
    """Return each column's maximum over a destination's sources, [num_dst, D].

    It is zero for destinations without sources. Several sources with the maximum share its gradient
    equally, so the gradient does not depend on the order of edges.

    Parameters
    ----------
    x: [num_src, D] floating point.

    Raises
    ------
    RequestError: there is not one row per source.
    """
    x = in_full(x)
    check_rows("x", x, block.num_src)
    out: Tensor = _CopyMax.apply(block, selection.kernels_for(x.device), x)
    return out


class _CopyMax(torch.autograd.Function):
    """Takes the largest value of each destination's sources, column by column."""

    @staticmethod
    def forward(ctx: Any, block: Edges, kernels: Kernels, x: Tensor) -> Tensor:
        """Find the largest values; destinations without edges get 0."""
        ctx.block, ctx.kernels = block, kernels
        sent = x.index_select(0, block.indices)
        out = segments(block, sent, "max")
        is_largest = sent == out.index_select(0, destinations(block))
        ctx.save_for_backward(is_largest)
        return out.masked_fill_((block.edges_per_destination() == 0).unsqueeze(-1), 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        """Divide a destination's gradient equally among the sources that have the largest value."""
        (is_largest,) = ctx.saved_tensors
        shares = is_largest.to(grad.dtype)
        count = segments(ctx.block, shares, "sum").clamp_(min=1)
        shares *= (grad / count).index_select(0, destinations(ctx.block))
        return None, None, gather_rows(ctx.kernels, edges_to_sources(ctx.block), shares)
