"""The operations of a backend, in plain torch for any device, as sums of consecutive segments.

They use no atomic additions. One thread sums each row of the result in the order of its entries, so
results repeat bit for bit for any number of threads.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hopper.graph.block import Edges
from hopper.ops.csr import Csr, destinations

Pair = tuple[Tensor, Tensor | None]
"""numbers of edges, [edges, H], and of the destinations themselves, [num_dst, H], if they take part
in a softmax"""
# The rows of this many edges stay in the processor's cache.
_EDGES_AT_A_TIME = 16384


class Kernels:
    """The operations of a backend, which are deterministic and have no gradient themselves.

    This class computes them by torch, on any device. Sums take ``entries * width`` of temporary
    memory. It serves CUDA without Triton, since the CSR product of the vendor's library does not
    repeat bit for bit. Other backends override its methods.
    """

    name = "torch"

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """Compute ``out[r] = sum_i weights[i] * x[indices[i]]``, to [num_rows, width].

        x is [num_cols, width] floating point. Weights are [entries, H] of x's dtype, for H equal
        pieces of a row; None = all are 1.
        """
        messages = x.index_select(0, csr.indices)
        if weights is not None:
            by_head = messages.view(*weights.shape, -1)
            messages = (by_head * weights.unsqueeze(-1)).view(messages.shape)
        return torch.segment_reduce(messages, "sum", offsets=csr.indptr, axis=0, unsafe=True)

    def edge_dot(self, block: Edges, x: Tensor, y: Tensor) -> Tensor:
        """Return the dot product [edges, H] of each edge's source row of x [num_src, H, D] and
        destination row of y [num_dst, H, D], of one floating-point dtype."""
        rows = destinations(block)
        out = x.new_empty(block.num_edges, x.shape[1])
        for start in range(0, block.num_edges, _EDGES_AT_A_TIME):
            piece = slice(start, start + _EDGES_AT_A_TIME)
            products = x.index_select(0, block.indices[piece])
            products *= y.index_select(0, rows[piece])
            torch.sum(products, -1, out=out[piece])
        return out

    def softmax(self, block: Edges, logits: Pair) -> Pair:
        """Compute the softmax of logits of one floating-point dtype over each destination's edges,
        and over its own logit if it has one."""
        of_edges, own = logits
        rows = destinations(block)
        # Subtracting the largest logit keeps the exponentials finite, and does not change shares.
        top = segments(block, of_edges, "max")
        if own is not None:
            top = torch.maximum(top, own)
        shares = (of_edges - top.index_select(0, rows)).exp_()
        total = segments(block, shares, "sum")
        if own is not None:
            own = (own - top).exp_()
            total += own
            own /= total
        shares /= total.index_select(0, rows)
        return shares, own

    def softmax_gradient(self, block: Edges, shares: Pair, grads: Pair) -> Pair:
        """Return the gradients of :meth:`softmax`'s logits, from the shares and their gradients."""
        (of_edges, own), (grad, grad_own) = shares, grads
        total = segments(block, of_edges * grad, "sum")
        if own is not None and grad_own is not None:
            total += own * grad_own
            grad_own = own * (grad_own - total)
        return of_edges * (grad - total.index_select(0, destinations(block))), grad_own


def segments(block: Edges, x: Tensor, reduce: str) -> Tensor:
    """Return the sum or maximum over each destination's edges, [num_dst, H]; 0 or -inf without."""
    if x.numel() == 0:
        empty = 0.0 if reduce == "sum" else -torch.inf
        return x.new_full((block.num_dst, *x.shape[1:]), empty)
    return torch.segment_reduce(x.contiguous(), reduce, offsets=block.indptr, axis=0, unsafe=True)


def empty_pair(pair: Pair) -> Pair:
    """Return contiguous arrays of the same shapes and dtypes, whose numbers are not set yet."""
    of_edges, own = pair
    make = partial(torch.empty_like, memory_format=torch.contiguous_format)
    return make(of_edges), None if own is None else make(own)
