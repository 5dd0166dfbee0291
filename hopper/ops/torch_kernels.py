"""Kernels in plain torch, for any device: sums of consecutive segments.

They use no atomic additions: every row of the result is added up by one thread in the order of
its entries, so results are repeatable bit for bit for any number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopper.graph.block import Edges
from hopper.ops.csr import Csr, destinations

# Edges whose end rows are multiplied at a time: both gathered pieces stay in the cache.
_EDGES_AT_A_TIME = 16384


class EdgeKernels:
    """Values per edge, on any device."""

    def edge_dot(self, block: Edges, x: Tensor, y: Tensor) -> Tensor:
        """[edges, H]: the dot product of each edge's source row of x and destination row of y.

        Parameters
        ----------
        x: [num_src, H, D] floating point.
        y: [num_dst, H, D], same dtype.
        """
        rows = destinations(block)
        out = x.new_empty(block.num_edges, x.shape[1])
        for start in range(0, block.num_edges, _EDGES_AT_A_TIME):
            piece = slice(start, start + _EDGES_AT_A_TIME)
            products = x.index_select(0, block.indices[piece])
            products *= y.index_select(0, rows[piece])
            torch.sum(products, -1, out=out[piece])
        return out

    def softmax(
        self, block: Edges, logits: Tensor, own: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The softmax over each destination's edges, and over its own logit if it has one.

        Parameters
        ----------
        logits: [edges, H] floating point.
        own: [num_dst, H] of the same dtype, or None.

        Returns
        -------
        Shares of the shapes of both.
        """
        rows = destinations(block)
        # Subtracting the largest logit keeps the exponentials finite and changes nothing else.
        top = segments(block, logits, "max")
        if own is not None:
            top = torch.maximum(top, own)
        shares = (logits - top.index_select(0, rows)).exp_()
        total = segments(block, shares, "sum")
        if own is not None:
            own = (own - top).exp_()
            total += own
            own /= total
        shares /= total.index_select(0, rows)
        return shares, own

    def softmax_gradient(
        self,
        block: Edges,
        shares: Tensor,
        own: Tensor | None,
        grad: Tensor,
        grad_own: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of what :meth:`softmax` was given, from its result and that one's gradients."""
        total = segments(block, shares * grad, "sum")
        if own is not None and grad_own is not None:
            total += own * grad_own
            grad_own = own * (grad_own - total)
        return shares * (grad - total.index_select(0, destinations(block))), grad_own


def segments(block: Edges, x: Tensor, reduce: str) -> Tensor:
    """[num_dst, H]: sum or maximum of each destination's edges (0 or -inf where it has none)."""
    if x.numel() == 0:
        empty = 0.0 if reduce == "sum" else -torch.inf
        return x.new_full((block.num_dst, *x.shape[1:]), empty)
    return torch.segment_reduce(x.contiguous(), reduce, offsets=block.indptr, axis=0, unsafe=True)


class SegmentKernels(EdgeKernels):
    """Sums as a gather and a sum of consecutive segments (any device).

    Takes ``entries * width`` of temporary memory. Meant for CUDA without Triton: the CSR product of
    the vendor's library is not repeatable bit for bit.
    """

    name = "torch"

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """[num_rows, width]: ``out[r] = sum_i weights[i] * x[indices[i]]``.

        Parameters
        ----------
        x: [num_cols, width] floating point.
        weights: [entries, H] of x's dtype, one for each of H equal pieces of a row; or None for
            ones.
        """
        messages = x.index_select(0, csr.indices)
        if weights is not None:
            by_head = messages.view(*weights.shape, -1)
            messages = (by_head * weights.unsqueeze(-1)).view(messages.shape)
        return torch.segment_reduce(messages, "sum", offsets=csr.indptr, axis=0, unsafe=True)
