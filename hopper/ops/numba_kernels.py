"""Kernels for the CPU, compiled by numba: no temporary of the size of all edges times the columns.

Every row of a result is added up by one thread in the order of its entries, so results are
repeatable bit for bit for any number of threads. Threads take consecutive rows with about equally
many entries, whatever the degrees.

float32 and float64 are computed as they are, other dtypes in float32.
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
"""runs of rows that a thread takes, so that it can take over from one that is held up"""
_NARROW: Final = 64
"""columns a head below which torch multiplies several heads sooner: in 0.6 of the time at 4 and 8
columns, 0.8 at 16 and 32 (200,000 edges, one thread)"""
_FULL: Final = (torch.float32, torch.float64)


class NumbaKernels(EdgeKernels):
    """All of a backend's operations (CPU)."""

    name = "numba"

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """[num_rows, width]: ``out[r] = sum_i weights[i] * x[indices[i]]``.

        Parameters
        ----------
        x: [num_cols, width] floating point.
        weights: [entries, H] of x's dtype, one for each of H equal pieces of a row; or None for
            ones.
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
        """[edges, H]: the dot product of each edge's source row of x and destination row of y.

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
        if logits.dtype not in _FULL:
            return _round(
                self.softmax(block, logits.float(), None if own is None else own.float()),
                logits.dtype,
            )
        # Subtracting the largest logit keeps the exponentials finite and changes nothing else.
        shares = _like(logits)
        own_shares = logits.new_empty(0, logits.shape[1]) if own is None else _like(own)
        alone = own_shares if own is None else own
        results, indptr = (_array(shares), _array(own_shares)), block.indptr.numpy()
        with _pieces_of(logits.numel()) as pieces:
            _subtract_largest(*results, _array(logits), _array(alone), indptr, pieces)
        # torch computes several exponentials at a time.
        shares.exp_()
        own_shares.exp_()
        with _pieces_of(logits.numel()) as pieces:
            _divide_by_sums(*results, indptr, pieces)
        return shares, None if own is None else own_shares

    def softmax_gradient(
        self,
        block: Edges,
        shares: Tensor,
        own: Tensor | None,
        grad: Tensor,
        grad_own: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of what :meth:`softmax` was given, from its result and that one's gradients."""
        if shares.dtype not in _FULL:
            own, grad_own = (x if x is None else x.float() for x in (own, grad_own))
            full = self.softmax_gradient(block, shares.float(), own, grad.float(), grad_own)
            return _round(full, shares.dtype)
        out = _like(shares)
        own_out = None if own is None or grad_own is None else _like(own)
        none = _array(shares.new_empty(0, shares.shape[1]))
        own_result, own_shares, own_grad = (
            none if own_out is None or x is None else _array(x) for x in (own_out, own, grad_own)
        )
        given = _array(shares), _array(grad), own_shares, own_grad
        with _pieces_of(shares.numel()) as pieces:
            _softmax_gradient(_array(out), own_result, *given, block.indptr.numpy(), pieces)
        return out, own_out


@contextmanager
def _pieces_of(numbers: int) -> Iterator[int]:
    """How many runs the rows are divided into where so many numbers are read; within it the calling
    thread's kernels use as many threads as that pays for."""
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
    shares, own = results
    return shares.to(dtype), None if own is None else own.to(dtype)


@kernel
def _divide(indptr: NDArray[np.int64], pieces: int) -> NDArray[np.int64]:
    """[pieces + 1] int64: runs of rows with about equally many rows and entries together."""
    rows = indptr.size - 1
    bounds = np.empty(pieces + 1, np.int64)
    for piece in range(pieces + 1):
        wanted = (indptr[rows] + rows) * piece // pieces
        low, high = 0, rows
        while low < high:
            middle = (low + high) // 2
            if indptr[middle] + middle < wanted:
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
            # The last vectors may hold columns once more: sums are the same.
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
                    rest = width - j - width % 8
                    total += _dot_one_vector(x, left + j, y, right + j, rest)
                    j += rest
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
    own_shares: NDArray[Any],
    logits: NDArray[Any],
    own: NDArray[Any],
    indptr: NDArray[np.int64],
    pieces: int,
) -> None:
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        for row in range(bounds[piece], bounds[piece + 1]):
            first, stop = indptr[row], indptr[row + 1]
            for head in range(logits.shape[1]):
                top = own[row, head] if own.shape[0] else logits.dtype.type(-np.inf)
                for edge in range(first, stop):
                    top = max(top, logits[edge, head])
                for edge in range(first, stop):
                    shares[edge, head] = logits[edge, head] - top
                if own.shape[0]:
                    own_shares[row, head] = own[row, head] - top


@kernel(parallel=True, error_model="numpy")
def _divide_by_sums(
    shares: NDArray[Any], own_shares: NDArray[Any], indptr: NDArray[np.int64], pieces: int
) -> None:
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        for row in range(bounds[piece], bounds[piece + 1]):
            first, stop = indptr[row], indptr[row + 1]
            for head in range(shares.shape[1]):
                total = shares.dtype.type(0)
                for edge in range(first, stop):
                    total += shares[edge, head]
                if own_shares.shape[0]:
                    total += own_shares[row, head]
                    own_shares[row, head] /= total
                for edge in range(first, stop):
                    shares[edge, head] /= total


@kernel(parallel=True, error_model="numpy")
def _softmax_gradient(
    out: NDArray[Any],
    own_out: NDArray[Any],
    shares: NDArray[Any],
    grad: NDArray[Any],
    own: NDArray[Any],
    grad_own: NDArray[Any],
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
                if own.shape[0]:
                    total += own[row, head] * grad_own[row, head]
                    own_out[row, head] = own[row, head] * (grad_own[row, head] - total)
                for edge in range(first, stop):
                    out[edge, head] = shares[edge, head] * (grad[edge, head] - total)
