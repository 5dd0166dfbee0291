"""Kernels for the CPU, compiled by numba, without temporaries of edges times columns.

One thread sums each row of a result in the order of its entries, so results repeat bit for bit for
any number of threads. Threads take runs of consecutive rows with about equally many entries.
float32 and float64 are computed in their own precision, other dtypes in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.graph.block import Edges
from hopper.kernel_threads import FEW_NUMBERS, threads_for
from hopper.ops.csr import Csr
from hopper.ops.strips import make_dot_strip, make_sum_strip
from hopper.ops.torch_kernels import EdgeKernels

_PIECES_A_THREAD: Final = 8
"""The runs of rows per thread. Threads that finish early take over runs of slower threads."""
_NARROW: Final = 64
"""The columns of a head below which torch multiplies several heads faster than the kernel.

torch takes 0.6 of the time at 4 and 8 columns, 0.8 at 16 and 32 (200,000 edges, one thread)."""
_FULL: Final = (torch.float32, torch.float64)


class NumbaKernels(EdgeKernels):
    """All operations of a backend, for the CPU."""

    name = "numba"

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """Compute ``out[r] = sum_i weights[i] * x[indices[i]]``, to [num_rows, width].

        Parameters
        ----------
        x: [num_cols, width] floating point.
        weights: [entries, H] of x's dtype, for H equal pieces of a row; None = all are 1.
        """
        if x.dtype not in _FULL:
            full = None if weights is None else weights.float()
            return self.gather_sum(csr, x.float(), full).to(x.dtype)
        out = x.new_empty(csr.num_rows, x.shape[1])
        arrays = _flat(out), _flat(x), csr.indptr.numpy(), csr.indices.numpy()
        with _pieces_of(csr.indices.numel() * x.shape[1]) as pieces:
            if weights is None:
                _sum_rows(*arrays, x.shape[1], pieces)
            else:
                _sum_weighted_rows(*arrays, _flat(weights), x.shape[1], weights.shape[1], pieces)
        return out

    def edge_dot(self, block: Edges, x: Tensor, y: Tensor) -> Tensor:
        """Return the dot product [edges, H] of each edge's source row of x and destination's of y.

        Parameters
        ----------
        x: [num_src, H, D] floating point.
        y: [num_dst, H, D], same dtype.
        """
        if x.dtype not in _FULL:
            return self.edge_dot(block, x.float(), y.float()).to(x.dtype)
        heads, width = x.shape[1:]
        if heads > 1 and width < _NARROW:
            return super().edge_dot(block, x, y)
        out = x.new_empty(block.num_edges, heads)
        arrays = _flat(out), _flat(x), _flat(y), block.indptr.numpy(), block.indices.numpy()
        with _pieces_of(block.num_edges * heads * width) as pieces:
            _dot_rows(*arrays, heads, width, pieces)
        return out

    def softmax(
        self, block: Edges, logits: Tensor, self_logits: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the softmax over each destination's edges, and over its own logit if it has one.

        Parameters
        ----------
        logits: [edges, H] floating point.
        self_logits: [num_dst, H] of the same dtype, or None.

        Returns
        -------
        The shares, in the shapes of both.
        """
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
            _subtract_largest(*results, _array(logits), _array(self_terms), indptr, pieces)
        # torch vectorises exponentials.
        shares.exp_()
        self_shares.exp_()
        with _pieces_of(logits.numel()) as pieces:
            _divide_by_sums(*results, indptr, pieces)
        return shares, None if self_logits is None else self_shares

    def softmax_gradient(
        self,
        block: Edges,
        shares: Tensor,
        self_shares: Tensor | None,
        grad: Tensor,
        grad_self: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of :meth:`softmax`'s logits, from the shares and their gradients."""
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
            _softmax_gradient(_array(out), self_result, *inputs, block.indptr.numpy(), pieces)
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
    array: NDArray[Any] = x.detach().contiguous().numpy()
    return array


def _flat(x: Tensor) -> NDArray[Any]:
    return _array(x).reshape(-1)


def _round(
    results: tuple[Tensor, Tensor | None], dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    shares, self_shares = results
    return shares.to(dtype), None if self_shares is None else self_shares.to(dtype)


@kernel
def _divide(indptr: NDArray[np.int64], pieces: int) -> NDArray[np.int64]:
    """Divide rows into runs with about equally many rows plus entries: [pieces + 1] int64."""
    rows = indptr.size - 1
    bounds = np.empty(pieces + 1, np.int64)
    for piece in range(pieces + 1):
        target = (indptr[rows] + rows) * piece // pieces
        low, high = 0, rows
        while low < high:
            middle = (low + high) // 2
            if indptr[middle] + middle < target:
                low = middle + 1
            else:
                high = middle
        bounds[piece] = low
    return bounds


_eight_vectors = make_sum_strip(8, 8, weighted=False)
_four_vectors = make_sum_strip(4, 8, weighted=False)
_two_vectors = make_sum_strip(2, 8, weighted=False)
_one_vector = make_sum_strip(1, 8, weighted=False)
_one_column = make_sum_strip(1, 1, weighted=False)
_eight_weighted = make_sum_strip(8, 8, weighted=True)
_two_weighted = make_sum_strip(2, 8, weighted=True)
_one_weighted = make_sum_strip(1, 8, weighted=True)
_half_weighted = make_sum_strip(1, 4, weighted=True)
_column_weighted = make_sum_strip(1, 1, weighted=True)


@kernel
def _sum_run(
    out: NDArray[Any],
    x: NDArray[Any],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    width: int,
    first_row: int,
    last_row: int,
) -> None:
    for row in range(first_row, last_row):
        first, stop, place, j = indptr[row], indptr[row + 1], row * width, 0
        while j + 64 <= width:
            _eight_vectors(out, place + j, x, indices, x, first, stop, j, width, 0, 0)
            j += 64
        if j + 32 <= width:
            _four_vectors(out, place + j, x, indices, x, first, stop, j, width, 0, 0)
            j += 32
        if j + 16 <= width:
            _two_vectors(out, place + j, x, indices, x, first, stop, j, width, 0, 0)
            j += 16
        if j < width and width >= 8:
            # The last vector may overlap the one before it, which computes the same sums again.
            if j + 8 < width:
                _one_vector(out, place + j, x, indices, x, first, stop, j, width, 0, 0)
            j = width - 8
            _one_vector(out, place + j, x, indices, x, first, stop, j, width, 0, 0)
            j = width
        while j < width:
            _one_column(out, place + j, x, indices, x, first, stop, j, width, 0, 0)
            j += 1


@kernel(parallel=True)
def _sum_rows(
    out: NDArray[Any],
    x: NDArray[Any],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    width: int,
    pieces: int,
) -> None:
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        _sum_run(out, x, indptr, indices, width, bounds[piece], bounds[piece + 1])


@kernel
def _sum_weighted_run(
    out: NDArray[Any],
    x: NDArray[Any],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    weights: NDArray[Any],
    width: int,
    heads: int,
    first_row: int,
    last_row: int,
) -> None:
    per_head = width // heads
    for row in range(first_row, last_row):
        first, stop, place = indptr[row], indptr[row + 1], row * width
        for head in range(heads):
            j, end = head * per_head, (head + 1) * per_head
            while j + 64 <= end:
                _eight_weighted(
                    out, place + j, x, indices, weights, first, stop, j, width, head, heads
                )
                j += 64
            while j + 16 <= end:
                _two_weighted(
                    out, place + j, x, indices, weights, first, stop, j, width, head, heads
                )
                j += 16
            if j + 8 <= end:
                _one_weighted(
                    out, place + j, x, indices, weights, first, stop, j, width, head, heads
                )
                j += 8
            if j < end and per_head >= 8:
                j = end - 8
                _one_weighted(
                    out, place + j, x, indices, weights, first, stop, j, width, head, heads
                )
                j = end
            if j + 4 <= end:
                _half_weighted(
                    out, place + j, x, indices, weights, first, stop, j, width, head, heads
                )
                j += 4
            while j < end:
                _column_weighted(
                    out, place + j, x, indices, weights, first, stop, j, width, head, heads
                )
                j += 1


@kernel(parallel=True)
def _sum_weighted_rows(
    out: NDArray[Any],
    x: NDArray[Any],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    weights: NDArray[Any],
    width: int,
    heads: int,
    pieces: int,
) -> None:
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        first, last = bounds[piece], bounds[piece + 1]
        _sum_weighted_run(out, x, indptr, indices, weights, width, heads, first, last)


_dot_four_vectors = make_dot_strip(4, 8)
_dot_one_vector = make_dot_strip(1, 8)
_dot_half_vector = make_dot_strip(1, 4)


@kernel
def _dot_run(
    out: NDArray[Any],
    x: NDArray[Any],
    y: NDArray[Any],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    heads: int,
    width: int,
    first_row: int,
    last_row: int,
) -> None:
    zero = x.dtype.type(0)
    for row in range(first_row, last_row):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for head in range(heads):
                left, right = (source * heads + head) * width, (row * heads + head) * width
                total, j = zero, 0
                if width >= 32:
                    j = width - width % 32
                    total += _dot_four_vectors(x, left, y, right, j)
                if j + 8 <= width:
                    columns = width - j - width % 8
                    total += _dot_one_vector(x, left + j, y, right + j, columns)
                    j += columns
                if j + 4 <= width:
                    total += _dot_half_vector(x, left + j, y, right + j, 4)
                    j += 4
                for column in range(j, width):
                    total += x[left + column] * y[right + column]
                out[edge * heads + head] = total


@kernel(parallel=True)
def _dot_rows(
    out: NDArray[Any],
    x: NDArray[Any],
    y: NDArray[Any],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    heads: int,
    width: int,
    pieces: int,
) -> None:
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        first, last = bounds[piece], bounds[piece + 1]
        _dot_run(out, x, y, indptr, indices, heads, width, first, last)


@kernel(parallel=True, error_model="numpy")
def _subtract_largest(
    shares: NDArray[Any],
    self_shares: NDArray[Any],
    logits: NDArray[Any],
    self_logits: NDArray[Any],
    indptr: NDArray[np.int64],
    pieces: int,
) -> None:
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        for row in range(bounds[piece], bounds[piece + 1]):
            first, stop = indptr[row], indptr[row + 1]
            for head in range(logits.shape[1]):
                top = self_logits[row, head] if self_logits.shape[0] else logits.dtype.type(-np.inf)
                for edge in range(first, stop):
                    top = max(top, logits[edge, head])
                for edge in range(first, stop):
                    shares[edge, head] = logits[edge, head] - top
                if self_logits.shape[0]:
                    self_shares[row, head] = self_logits[row, head] - top


@kernel(parallel=True, error_model="numpy")
def _divide_by_sums(
    shares: NDArray[Any], self_shares: NDArray[Any], indptr: NDArray[np.int64], pieces: int
) -> None:
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        for row in range(bounds[piece], bounds[piece + 1]):
            first, stop = indptr[row], indptr[row + 1]
            for head in range(shares.shape[1]):
                total = shares.dtype.type(0)
                for edge in range(first, stop):
                    total += shares[edge, head]
                if self_shares.shape[0]:
                    total += self_shares[row, head]
                    self_shares[row, head] /= total
                for edge in range(first, stop):
                    shares[edge, head] /= total


@kernel(parallel=True, error_model="numpy")
def _softmax_gradient(
    out: NDArray[Any],
    self_out: NDArray[Any],
    shares: NDArray[Any],
    grad: NDArray[Any],
    self_shares: NDArray[Any],
    grad_self: NDArray[Any],
    indptr: NDArray[np.int64],
    pieces: int,
) -> None:
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        for row in range(bounds[piece], bounds[piece + 1]):
            first, stop = indptr[row], indptr[row + 1]
            for head in range(shares.shape[1]):
                total = shares.dtype.type(0)
                for edge in range(first, stop):
                    total += shares[edge, head] * grad[edge, head]
                if self_shares.shape[0]:
                    total += self_shares[row, head] * grad_self[row, head]
                    self_out[row, head] = self_shares[row, head] * (grad_self[row, head] - total)
                for edge in range(first, stop):
                    out[edge, head] = shares[edge, head] * (grad[edge, head] - total)
