"""Kernels for the CPU, compiled by numba, without temporaries of edges times columns.

One thread sums each row of a result in the order of its entries, so results repeat bit for bit for
any number of threads. Threads take runs of consecutive rows with about equally many entries.
float32 and float64 are computed in their own precision, other dtypes in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device.kernel_threads import FEW_NUMBERS, threads_for
from hopper.graph.block import Edges
from hopper.ops import numba_loops
from hopper.ops.csr import Csr
from hopper.ops.torch_kernels import Kernels

_PIECES_A_THREAD: Final = 8
"""The runs of rows per thread. Threads that finish early take over runs of slower threads."""
_NARROW: Final = 64
"""The columns of a head below which torch multiplies several heads faster than the kernel.

torch takes 0.6 of the time at 4 and 8 columns, 0.8 at 16 and 32 (200,000 edges, one thread)."""
_FULL: Final = (torch.float32, torch.float64)


class NumbaKernels(Kernels):
    """All operations of a backend, for the CPU."""

    name = "numba"

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """Compute :meth:`Kernels.gather_sum`, each row in strips of columns."""
        if x.dtype not in _FULL:
            full = None if weights is None else weights.float()
            return self.gather_sum(csr, x.float(), full).to(x.dtype)
        out = x.new_empty(csr.num_rows, x.shape[1])
        arrays = _flat(out), _flat(x), csr.indptr.numpy(), csr.indices.numpy()
        with _pieces_of(csr.indices.numel() * x.shape[1]) as pieces:
            if weights is None:
                numba_loops.sum_rows(*arrays, x.shape[1], pieces)
            else:
                numba_loops.sum_weighted_rows(
                    *arrays, _flat(weights), x.shape[1], weights.shape[1], pieces
                )
        return out

    def edge_dot(self, block: Edges, x: Tensor, y: Tensor) -> Tensor:
        """Compute :meth:`Kernels.edge_dot`, by torch where heads are narrow."""
        if x.dtype not in _FULL:
            return self.edge_dot(block, x.float(), y.float()).to(x.dtype)
        heads, width = x.shape[1:]
        if heads > 1 and width < _NARROW:
            return super().edge_dot(block, x, y)
        out = x.new_empty(block.num_edges, heads)
        arrays = _flat(out), _flat(x), _flat(y), block.indptr.numpy(), block.indices.numpy()
        with _pieces_of(block.num_edges * heads * width) as pieces:
            numba_loops.dot_rows(*arrays, heads, width, pieces)
        return out

    def softmax(
        self, block: Edges, logits: Tensor, self_logits: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute :meth:`Kernels.softmax`."""
        if logits.dtype not in _FULL:
            full = None if self_logits is None else self_logits.float()
            return _round(self.softmax(block, logits.float(), full), logits.dtype)
        # Subtracting the largest logit keeps the exponentials finite, and does not change shares.
        shares = _like(logits)
        # Kernels take an empty array where there are no logits of destinations.
        empty = logits.new_empty(0, logits.shape[1])
        self_shares = empty if self_logits is None else _like(self_logits)
        self_terms = empty if self_logits is None else self_logits
        results, indptr = (_array(shares), _array(self_shares)), block.indptr.numpy()
        with _pieces_of(logits.numel()) as pieces:
            numba_loops.subtract_largest(
                *results, _array(logits), _array(self_terms), indptr, pieces
            )
        # torch vectorises exponentials.
        shares.exp_()
        self_shares.exp_()
        with _pieces_of(logits.numel()) as pieces:
            numba_loops.divide_by_sums(*results, indptr, pieces)
        return shares, None if self_logits is None else self_shares

    def softmax_gradient(
        self,
        block: Edges,
        shares: Tensor,
        self_shares: Tensor | None,
        grad: Tensor,
        grad_self: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute :meth:`Kernels.softmax_gradient`."""
        if shares.dtype not in _FULL:
            self_shares, grad_self = (
                x if x is None else x.float() for x in (self_shares, grad_self)
            )
            full = self.softmax_gradient(
                block, shares.float(), self_shares, grad.float(), grad_self
            )
            return _round(full, shares.dtype)
        out = _like(shares)
        self_out = None if self_shares is None or grad_self is None else _like(self_shares)
        empty = _array(shares.new_empty(0, shares.shape[1]))
        self_result, self_inputs, self_grad = (
            empty if self_out is None or x is None else _array(x)
            for x in (self_out, self_shares, grad_self)
        )
        inputs = _array(shares), _array(grad), self_inputs, self_grad
        with _pieces_of(shares.numel()) as pieces:
            numba_loops.softmax_gradient(
                _array(out), self_result, *inputs, block.indptr.numpy(), pieces
            )
        return out, self_out


@contextmanager
def _pieces_of(numbers: int) -> Iterator[int]:
    """Open a context with the number of threads that reading so many numbers pays for.

    It yields the number of runs into which rows are divided.
    """
    with threads_for(numbers, FEW_NUMBERS) as threads:
        yield threads * _PIECES_A_THREAD if threads > 1 else 1


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _array(x: Tensor) -> NDArray[Any]:
    return x.detach().contiguous().numpy()


def _flat(x: Tensor) -> NDArray[Any]:
    return _array(x).reshape(-1)


def _round(
    results: tuple[Tensor, Tensor | None], dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    shares, self_shares = results
    return shares.to(dtype), None if self_shares is None else self_shares.to(dtype)
