"""Sums of messages over the edges of a block, which repeat bit for bit.

Blocks may have no edges or no destinations. All functions are differentiable once. Gradients are
computed only for inputs that require them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.errors import RequestError
from hopper.graph.block import Edges
from hopper.ops import selection
from hopper.ops.csr import Csr, destinations_to_sources, edge_order, sources_to_destinations
from hopper.ops.linear_map import linear_map
from hopper.ops.precision import in_full
from hopper.ops.torch_kernels import Kernels

Pattern = Callable[[Edges], Csr | Tensor]


def copy_sum(block: Edges, x: Tensor) -> Tensor:
    """Sum the source rows of each destination, to [num_dst, ...] of x's dtype; zero for
    destinations without sampled edges.

    Parameters
    ----------
    x: [num_src, ...] floating point.

    Raises
    ------
    RequestError: x does not have one row per source, or is not floating point.
    """
    x = full_rows("x", x, block.num_src)
    return gather(block, sources_to_destinations, destinations_to_sources, x)


def gather(block: Edges, pattern: Pattern, transposed: Pattern, x: Tensor) -> Tensor:
    """Sum the rows of x that each row of a pattern gathers, with a gradient for x.

    ``pattern`` and ``transposed`` make the pattern of the sum and that of its gradient from the
    block: a :class:`Csr`, or, where every row gathers one, the indices of these.
    """
    gather_along = partial(_gather, block, selection.kernels_for(x.device))
    return linear_map(x, partial(gather_along, pattern), partial(gather_along, transposed))


def _gather(block: Edges, kernels: Kernels, pattern: Pattern, x: Tensor) -> Tensor:
    made = pattern(block)
    return gather_rows(kernels, made, x) if isinstance(made, Csr) else x.index_select(0, made)


def copy_mean(block: Edges, x: Tensor) -> Tensor:
    """Average the source rows of each destination; arguments and errors as in :func:`copy_sum`."""
    sums = copy_sum(block, x)
    counts = block.sampled_degree().clamp(min=1).to(sums.dtype)
    return sums / counts.view(-1, *[1] * (x.dim() - 1))


def weighted_sum(block: Edges, x: Tensor, w: Tensor) -> Tensor:
    """Sum the source rows of each destination, each times its edge's weight, to [num_dst, D] or
    [num_dst, H, D].

    Parameters
    ----------
    x: [num_src, D], or [num_src, H, D] with H heads.
    w: [edges], or [edges, H]; same dtype as x.

    Raises
    ------
    RequestError: the shapes or dtypes do not fit the block or each other.
    """
    x, w = full_rows("x", x, block.num_src), full_rows("w", w, block.num_edges)
    expected = {2: (block.num_edges,), 3: (block.num_edges, *x.shape[1:2])}.get(x.dim())
    if expected is None or w.shape != expected or w.dtype != x.dtype:
        raise RequestError(
            "weighted_sum: expected x [num_src, D] with w [edges], or x [num_src, H, D] with "
            f"w [edges, H], of one dtype; given x {list(x.shape)} {x.dtype}, "
            f"w {list(w.shape)} {w.dtype}"
        )
    kernels = selection.kernels_for(x.device)
    if x.dim() == 3:
        return _WeightedSum.apply(block, kernels, x, w)
    out: Tensor = _WeightedSum.apply(block, kernels, x.unsqueeze(1), w.unsqueeze(1))
    return out.squeeze(1)


def edge_dot(block: Edges, x: Tensor, y: Tensor) -> Tensor:
    """Compute the dot product of each edge's source and destination row, per head, to [edges, H].

    Parameters
    ----------
    x: [num_src, H, D] floating point.
    y: [num_dst, H, D], same dtype.

    Raises
    ------
    RequestError: the shapes or dtypes do not fit the block or each other.
    """
    x, y = full_rows("x", x, block.num_src), full_rows("y", y, block.num_dst)
    if x.dim() != 3 or x.shape[1:] != y.shape[1:] or x.dtype != y.dtype:
        raise RequestError(
            "edge_dot: expected x [num_src, H, D] and y [num_dst, H, D] of one dtype; given "
            f"{list(x.shape)} {x.dtype} and {list(y.shape)} {y.dtype}"
        )
    return _EdgeDot.apply(block, selection.kernels_for(x.device), x, y)


def gather_rows(kernels: Kernels, csr: Csr, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute a backend's sum for rows of any shape, to [num_rows, ...]; zero without entries.

    Weights are [entries] for whole rows, or [entries, H] for rows [num_cols, H, ...].
    """
    shape = (csr.num_rows, *x.shape[1:])
    if csr.indices.numel() == 0 or x.numel() == 0:
        return x.new_zeros(shape)
    rows = x.reshape(x.shape[0], -1)
    if weights is not None:
        weights = weights.reshape(csr.indices.numel(), -1)
    if torch.is_autocast_enabled(x.device.type):
        # Some backends compute the sum as a product, which autocast must not change.
        with torch.autocast(x.device.type, enabled=False):
            return kernels.gather_sum(csr, rows, weights).view(shape)
    return kernels.gather_sum(csr, rows, weights).view(shape)


def full_rows(name: str, x: Tensor, rows: int) -> Tensor:
    """Return x by :func:`in_full`; raise RequestError unless it is floating point with this many
    rows."""
    x = in_full(x)
    if x.dim() == 0 or x.shape[0] != rows or not x.is_floating_point():
        raise RequestError(
            f"{name}: expected a floating-point tensor of {rows} rows; "
            f"given {list(x.shape)} {x.dtype}"
        )
    return x


class _WeightedSum(torch.autograd.Function):
    """Sums rows times edge weights by head: x [num_src, H, D], w [edges, H] -> [num_dst, H, D]."""

    @staticmethod
    def forward(ctx: Any, block: Edges, kernels: Kernels, x: Tensor, w: Tensor) -> Tensor:
        ctx.block, ctx.kernels = block, kernels
        needs_x, needs_w = ctx.needs_input_grad[2:]
        ctx.save_for_backward(x if needs_w else None, w if needs_x else None)
        return gather_rows(kernels, sources_to_destinations(block), x, w)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, Tensor | None]:
        """Sum weighted gradients by source for x, and compute dot products on edges for w."""
        x, w = ctx.saved_tensors
        grad_x = grad_w = None
        if w is not None:
            ordered = w.index_select(0, edge_order(ctx.block))
            pattern = destinations_to_sources(ctx.block)
            grad_x = gather_rows(ctx.kernels, pattern, grad, ordered)
        if x is not None:
            grad_w = ctx.kernels.edge_dot(ctx.block, x, grad)
        return None, None, grad_x, grad_w


class _EdgeDot(torch.autograd.Function):
    """Multiplies the rows of both ends by head: x [num_src, H, D], y [num_dst, H, D] -> [edges,
    H]."""

    @staticmethod
    def forward(ctx: Any, block: Edges, kernels: Kernels, x: Tensor, y: Tensor) -> Tensor:
        ctx.block, ctx.kernels = block, kernels
        needs_x, needs_y = ctx.needs_input_grad[2:]
        ctx.save_for_backward(x if needs_y else None, y if needs_x else None)
        return kernels.edge_dot(block, x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, Tensor | None]:
        """Sum the other ends' rows, weighted by the edges' gradients."""
        x, y = ctx.saved_tensors
        grad_x = grad_y = None
        if y is not None:
            ordered = grad.index_select(0, edge_order(ctx.block))
            grad_x = gather_rows(ctx.kernels, destinations_to_sources(ctx.block), y, ordered)
        if x is not None:
            grad_y = gather_rows(ctx.kernels, sources_to_destinations(ctx.block), x, grad)
        return None, None, grad_x, grad_y
