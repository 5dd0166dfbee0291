"""Sums of messages over the edges of a block, which repeat bit for bit.

Blocks may have no edges or no destinations. All functions are differentiable once. Gradients are
computed only for inputs that require them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hopper.errors import RequestError
from hopper.graph.block import Edges
from hopper.ops import selection
from hopper.ops.csr import Csr, destinations_to_sources, edge_order, sources_to_destinations
from hopper.ops.linear_map import bilinear_map, linear_map
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
    if x.dim() == 2:
        return weighted_sum(block, x.unsqueeze(1), w.unsqueeze(1)).squeeze(1)
    kernels = selection.kernels_for(x.device)
    return bilinear_map(
        x,
        w,
        partial(_sum_of_sources, block, kernels),
        lambda grad, w: _sum_of_destinations(block, kernels, grad, w),
        lambda x, grad: kernels.edge_dot(block, x, grad),
    )


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
    kernels = selection.kernels_for(x.device)
    return bilinear_map(
        x,
        y,
        partial(kernels.edge_dot, block),
        lambda grad, y: _sum_of_destinations(block, kernels, y, grad),
        partial(_sum_of_sources, block, kernels),
    )


def _sum_of_sources(block: Edges, kernels: Kernels, x: Tensor, w: Tensor) -> Tensor:
    """Sum the rows [num_src, H, D] of sources, times weights [edges, H], to [num_dst, H, D]."""
    return gather_rows(kernels, sources_to_destinations(block), x, w)


def _sum_of_destinations(block: Edges, kernels: Kernels, y: Tensor, w: Tensor) -> Tensor:
    """Sum the rows [num_dst, H, D] of destinations, times weights [edges, H], by source."""
    weights = w.index_select(0, edge_order(block))
    return gather_rows(kernels, destinations_to_sources(block), y, weights)


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
