"""Edge logits and their softmax over the in-edges of each destination."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.errors import RequestError
from hopper.graph.block import Edges
from hopper.ops import selection
from hopper.ops.edges import destination_rows, source_rows
from hopper.ops.message_passing import full_rows
from hopper.ops.torch_kernels import Kernels, segments


def edge_add(block: Edges, a_src: Tensor, a_dst: Tensor) -> Tensor:
    """Add the source's and the destination's term of each edge, per head, to [edges, H].

    Parameters
    ----------
    a_src: [num_src, H] floating point.
    a_dst: [num_dst, H], same dtype.

    Raises
    ------
    RequestError: the shapes do not fit the block or each other.
    """
    a_src = full_rows("a_src", a_src, block.num_src)
    a_dst = full_rows("a_dst", a_dst, block.num_dst)
    _check_same("edge_add", a_src, a_dst)
    return source_rows(block, a_src) + destination_rows(block, a_dst)


def edge_softmax(block: Edges, logits: Tensor) -> Tensor:
    """Compute the softmax of logits [edges, H] over the sampled in-edges of each destination.

    Logits are floating point. The results, [edges, H], sum to 1 over the edges of a destination,
    per head.
    """
    logits = full_rows("logits", logits, block.num_edges)
    kernels = selection.kernels_for(logits.device)
    return _EdgeSoftmax.apply(block, kernels, logits, None)[0]


def edge_softmax_with_self(
    block: Edges, logits: Tensor, self_logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the softmax over the sampled in-edges of each destination *and* the destination.

    The destination takes part as if the block had a self loop for it.

    Logits are [edges, H] and [num_dst, H], of one floating-point dtype. So are the results, which
    sum to 1 together for each destination and head.
    """
    logits = full_rows("logits", logits, block.num_edges)
    self_logits = full_rows("self_logits", self_logits, block.num_dst)
    _check_same("edge_softmax_with_self", logits, self_logits)
    kernels = selection.kernels_for(logits.device)
    edges, self_shares = _EdgeSoftmax.apply(block, kernels, logits, self_logits)
    return edges, self_shares


@torch.no_grad()
def segment_max(block: Edges, logits: Tensor) -> Tensor:
    """Return the largest of logits [edges, H] over each destination's edges, [num_dst, H]; -inf for
    destinations without edges.

    Logits are floating point. The result has no gradient.
    """
    return segments(block, full_rows("logits", logits, block.num_edges), "max")


class _EdgeSoftmax(torch.autograd.Function):
    """Normalises the logits of each destination's edges, and of the destination itself if asked
    to."""

    @staticmethod
    def forward(
        ctx: Any, block: Edges, kernels: Kernels, logits: Tensor, self_logits: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        edges, self_shares = kernels.softmax(block, (logits, self_logits))
        ctx.block, ctx.kernels = block, kernels
        ctx.save_for_backward(edges, self_shares)
        return edges, self_shares

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor, grad_self: Tensor | None
    ) -> tuple[None, None, Tensor, Tensor | None]:
        grads = ctx.kernels.softmax_gradient(ctx.block, ctx.saved_tensors, (grad, grad_self))
        return None, None, *grads


def _check_same(operation: str, first: Tensor, second: Tensor) -> None:
    if first.dim() != 2 or first.shape[1:] != second.shape[1:] or first.dtype != second.dtype:
        raise RequestError(
            f"{operation}: expected two tensors [rows, H] of one dtype; given "
            f"{list(first.shape)} {first.dtype} and {list(second.shape)} {second.dtype}"
        )
