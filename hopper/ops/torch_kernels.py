"""The operations of a backend, in plain torch for any device, as sums of consecutive segments.

They use no atomic additions. One thread sums each row of the result in the order of its entries, so
results repeat bit for bit for any number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopper.graph.block import Edges
from hopper.ops.csr import Csr, destinations

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

    def softmax(
        self, block: Edges, logits: Tensor, self_logits: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the softmax of logits [edges, H] over each destination's edges, and over its own
        logit [num_dst, H] of the same floating-point dtype if it has one; return the shares in the
        shapes of both."""
        rows = destinations(block)
        # Subtracting the largest logit keeps the exponentials finite, and does not change shares.
        top = segments(block, logits, "max")
        self_shares = None
        if self_logits is not None:
            top = torch.maximum(top, self_logits)
        shares = (logits - top.index_select(0, rows)).exp_()
        total = segments(block, shares, "sum")
        if self_logits is not None:
            self_shares = (self_logits - top).exp_()
            total += self_shares
            self_shares /= total
        shares /= total.index_select(0, rows)
        return shares, self_shares

    def softmax_gradient(
        self,
        block: Edges,
        shares: Tensor,
        self_shares: Tensor | None,
        grad: Tensor,
        grad_self: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of :meth:`softmax`'s logits, from the shares and their gradients."""
        total = segments(block, shares * grad, "sum")
        if self_shares is not None and grad_self is not None:
            total += self_shares * grad_self
            grad_self = self_shares * (grad_self - total)
        return shares * (grad - total.index_select(0, destinations(block))), grad_self


def segments(block: Edges, x: Tensor, reduce: str) -> Tensor:
    """Return the sum or maximum over each destination's edges, [num_dst, H]; 0 or -inf without."""
    if x.numel() == 0:
        empty = 0.0 if reduce == "sum" else -torch.inf
        return x.new_full((block.num_dst, *x.shape[1:]), empty)
    return torch.segment_reduce(x.contiguous(), reduce, offsets=block.indptr, axis=0, unsafe=True)
