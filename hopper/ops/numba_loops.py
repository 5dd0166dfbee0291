"""The loops of :mod:`hopper.ops.numba_kernels`, compiled by numba.

Arrays are contiguous, and those of strips are one-dimensional. ``indptr`` bounds the entries of
each row, or the edges of each destination. Threads share ``pieces`` runs of consecutive rows.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.topology import Ids
from hopper.ops.strips import make_dot_strip, make_sum_strip

Array = NDArray[Any]


@kernel
def _divide(indptr: Ids, pieces: int) -> Ids:
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
    out: Array, x: Array, indptr: Ids, indices: Ids, width: int, first_row: int, last_row: int
) -> None:
    for row in range(first_row, last_row):
        first, stop, j = indptr[row], indptr[row + 1], 0
        while j + 64 <= width:
            _eight_vectors(out, row, x, indices, x, first, stop, j, width, 0, 0)
            j += 64
        if j + 32 <= width:
            _four_vectors(out, row, x, indices, x, first, stop, j, width, 0, 0)
            j += 32
        if j + 16 <= width:
            _two_vectors(out, row, x, indices, x, first, stop, j, width, 0, 0)
            j += 16
        if j < width and width >= 8:
            # The last vector may overlap the one before it, which computes the same sums again.
            if j + 8 < width:
                _one_vector(out, row, x, indices, x, first, stop, j, width, 0, 0)
            j = width - 8
            _one_vector(out, row, x, indices, x, first, stop, j, width, 0, 0)
            j = width
        while j < width:
            _one_column(out, row, x, indices, x, first, stop, j, width, 0, 0)
            j += 1


@kernel(parallel=True)
def sum_rows(out: Array, x: Array, indptr: Ids, indices: Ids, width: int, pieces: int) -> None:
    """Compute ``out[r] = sum_i x[indices[i]]`` over a row's entries."""
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        _sum_run(out, x, indptr, indices, width, bounds[piece], bounds[piece + 1])


@kernel
def _sum_weighted_run(
    out: Array,
    x: Array,
    indptr: Ids,
    indices: Ids,
    weights: Array,
    width: int,
    heads: int,
    first_row: int,
    last_row: int,
) -> None:
    per_head = width // heads
    for row in range(first_row, last_row):
        first, stop = indptr[row], indptr[row + 1]
        for head in range(heads):
            j, end = head * per_head, (head + 1) * per_head
            while j + 64 <= end:
                _eight_weighted(out, row, x, indices, weights, first, stop, j, width, head, heads)
                j += 64
            while j + 16 <= end:
                _two_weighted(out, row, x, indices, weights, first, stop, j, width, head, heads)
                j += 16
            if j + 8 <= end:
                _one_weighted(out, row, x, indices, weights, first, stop, j, width, head, heads)
                j += 8
            if j < end and per_head >= 8:
                j = end - 8
                _one_weighted(out, row, x, indices, weights, first, stop, j, width, head, heads)
                j = end
            if j + 4 <= end:
                _half_weighted(out, row, x, indices, weights, first, stop, j, width, head, heads)
                j += 4
            while j < end:
                _column_weighted(out, row, x, indices, weights, first, stop, j, width, head, heads)
                j += 1


@kernel(parallel=True)
def sum_weighted_rows(
    out: Array,
    x: Array,
    indptr: Ids,
    indices: Ids,
    weights: Array,
    width: int,
    heads: int,
    pieces: int,
) -> None:
    """Compute ``out[r] = sum_i weights[i] * x[indices[i]]`` over a row's entries, by head."""
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        first, last = bounds[piece], bounds[piece + 1]
        _sum_weighted_run(out, x, indptr, indices, weights, width, heads, first, last)


_dot_four_vectors = make_dot_strip(4, 8)
_dot_one_vector = make_dot_strip(1, 8)
_dot_half_vector = make_dot_strip(1, 4)


@kernel(parallel=True)
def dot_rows(
    out: Array, x: Array, y: Array, indptr: Ids, indices: Ids, heads: int, width: int, pieces: int
) -> None:
    """Compute each edge's dot product of its source row of x and destination row of y, by head."""
    zero = x.dtype.type(0)
    bounds = _divide(indptr, pieces)
    for piece in numba.prange(pieces):
        for row in range(bounds[piece], bounds[piece + 1]):
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


@kernel(parallel=True, error_model="numpy")
def subtract_largest(
    shares: Array, self_shares: Array, logits: Array, self_logits: Array, indptr: Ids, pieces: int
) -> None:
    """Subtract from each logit the largest one of its destination."""
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
def divide_by_sums(shares: Array, self_shares: Array, indptr: Ids, pieces: int) -> None:
    """Divide each number by the sum of the numbers of its destination."""
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
def softmax_gradient(
    out: Array,
    self_out: Array,
    shares: Array,
    self_shares: Array,
    grad: Array,
    grad_self: Array,
    indptr: Ids,
    pieces: int,
) -> None:
    """Compute the gradients of a softmax's logits from the shares and their gradients."""
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
