"""Values per edge, which are gathered from either end, and summed or compared by destination.

They are for layers whose messages are not weighted source rows. Every function materialises
[edges, ...].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.errors import RequestError
from hopper.graph.block import Edges
from hopper.ops import selection
from hopper.ops.csr import destinations, edges_to_destinations, edges_to_sources
from hopper.ops.linear_map import linear_map
from hopper.ops.message_passing import full_rows, gather, gather_rows
from hopper.ops.torch_kernels import Kernels, segments


def source_rows(block: Edges, x: Tensor) -> Tensor:
    """Return the source row of each edge, [edges, ...].

    Its gradient repeats bit for bit. That of ``x[block.indices]`` does not, since it is summed in
    no fixed order.

    Parameters
    ----------
    x: [num_src, ...] floating point.

    Raises
    ------
    RequestError: x does not have one row per source, or is not floating point.
    """
    x = full_rows("x", x, block.num_src)
    return gather(block, lambda edges: edges.indices, edges_to_sources, x)


def destination_rows(block: Edges, x: Tensor) -> Tensor:
    """Return the destination row of each edge, [edges, ...], from x [num_dst, ...].

    Errors are those of :func:`source_rows`.
    """
    x = full_rows("x", x, block.num_dst)
    return gather(block, destinations, edges_to_destinations, x)


def edge_sum(block: Edges, messages: Tensor, w: Tensor | None = None) -> Tensor:
    """Sum the values of each destination's edges, with weights if they are given, to [num_dst,
    ...]; zero for destinations without sampled edges.

    Parameters
    ----------
    messages: [edges, ...] floating point.
    w: [edges] of the same dtype, constants without a gradient.

    Raises
    ------
    RequestError: the shapes or dtypes do not fit the block or each other, or w requires a gradient.
    """
    messages = full_rows("messages", messages, block.num_edges)
    if w is None:
        return gather(block, edges_to_destinations, destinations, messages)
    if w.shape != (block.num_edges,) or w.dtype != messages.dtype or w.requires_grad:
        raise RequestError(
            f"edge_sum: expected constant weights w [{block.num_edges}] of {messages.dtype}; given "
            f"{list(w.shape)} {w.dtype}{', which requires a gradient' if w.requires_grad else ''}"
        )
    weights, kernels = w, selection.kernels_for(messages.device)

    def spread(grad: Tensor) -> Tensor:
        out = grad.index_select(0, destinations(block))
        out *= weights.view(-1, *[1] * (grad.dim() - 1))
        return out

    pattern = edges_to_destinations(block)
    return linear_map(messages, lambda x: gather_rows(kernels, pattern, x, weights), spread)


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
    x = full_rows("x", x, block.num_src)
    return _CopyMax.apply(block, selection.kernels_for(x.device), x)


class _CopyMax(torch.autograd.Function):
    """Takes the largest value of each destination's sources, column by column."""

    @staticmethod
    def forward(ctx: Any, block: Edges, kernels: Kernels, x: Tensor) -> Tensor:
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
