"""Gathering sums in plain torch: CSR products on the CPU, sorted segment sums on CUDA.

Neither uses atomic additions: every row of the result is added up by one thread in the order of
its entries, so results are repeatable bit for bit for any number of threads.
"""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from hopper.ops.csr import Csr


class CsrKernels:
    """Sums as products with a sparse CSR matrix (CPU)."""

    name = "torch"

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """[num_rows, width]: ``out[r] = sum_i weights[i] * x[indices[i]]``.

        Parameters
        ----------
        x: [num_cols, width] floating point.
        weights: [entries] of x's dtype, or None for ones.
        """
        if weights is None:
            weights = self._ones(csr, x.dtype)
        return _csr_matrix(csr, weights.contiguous()) @ x

    def _ones(self, csr: Csr, dtype: torch.dtype) -> Tensor:
        key = f"ones.{dtype}"
        if key not in csr.prepared:
            csr.prepared[key] = torch.ones(csr.indices.numel(), dtype=dtype)
        ones: Tensor = csr.prepared[key]
        return ones


class SegmentKernels:
    """Sums as a gather and a sum of consecutive segments (any device).

    Takes ``entries * width`` of temporary memory. Meant for CUDA, where the CSR product of the
    vendor's library is not repeatable bit for bit.
    """

    name = "torch"

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """As :meth:`CsrKernels.gather_sum`."""
        messages = x.index_select(0, csr.indices)
        if weights is not None:
            messages = messages * weights.unsqueeze(-1)
        return torch.segment_reduce(messages, "sum", offsets=csr.indptr, axis=0, unsafe=True)


def _csr_matrix(csr: Csr, values: Tensor) -> Tensor:
    _hear_notices()
    shape = (csr.num_rows, csr.num_cols)
    return torch.sparse_csr_tensor(csr.indptr, csr.indices, values, shape, check_invariants=False)


@functools.cache
def _hear_notices() -> None:
    """Torch says once per process that CSR is in beta and unchecked; no user can act on it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        pointers = torch.tensor([0, 1])
        matrix = torch.sparse_csr_tensor(pointers, pointers[:1], torch.ones(1), (1, 1))
        _ = matrix @ torch.ones(1, 1)
