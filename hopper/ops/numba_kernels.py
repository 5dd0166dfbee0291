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
from hopper.ops.torch_kernels import Kernels, Pair, empty_pair

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
            return self.gather_sum(csr, *_convert((x, weights), torch.float32)).to(x.dtype)
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

    def softmax(self, block: Edges, logits: Pair) -> Pair:
        """Compute :meth:`Kernels.softmax`."""
        dtype = logits[0].dtype
        if dtype not in _FULL:
            return _convert(self.softmax(block, _convert(logits, torch.float32)), dtype)
        # Subtracting the largest logit keeps the exponentials finite, and does not change shares.
        result = empty_pair(logits)
        arrays, indptr = _arrays(result), block.indptr.numpy()
        shares, own = result
        with _pieces_of(shares.numel()) as pieces:
            numba_loops.subtract_largest(*arrays, *_arrays(logits), indptr, pieces)
        # torch vectorises exponentials.
        shares.exp_()
        if own is not None:
            own.exp_()
        with _pieces_of(shares.numel()) as pieces:
            numba_loops.divide_by_sums(*arrays, indptr, pieces)
        return result

    def softmax_gradient(self, block: Edges, shares: Pair, grads: Pair) -> Pair:
        """Compute :meth:`Kernels.softmax_gradient`."""
        dtype = shares[0].dtype
        if dtype not in _FULL:
            full = (_convert(pair, torch.float32) for pair in (shares, grads))
            return _convert(self.softmax_gradient(block, *full), dtype)
        result = empty_pair(shares)
        arrays = *_arrays(result), *_arrays(shares), *_arrays(grads)
        with _pieces_of(shares[0].numel()) as pieces:
            numba_loops.softmax_gradient(*arrays, block.indptr.numpy(), pieces)
        return result


@contextmanager
def _pieces_of(numbers: int) -> Iterator[int]:
    """Open a context with the number of threads that reading so many numbers pays for.

    It yields the number of runs into which rows are divided.
    """
    with threads_for(numbers, FEW_NUMBERS) as threads:
        yield threads * _PIECES_A_THREAD if threads > 1 else 1


def _convert(pair: Pair, dtype: torch.dtype) -> Pair:
    of_edges, own = pair
    return of_edges.to(dtype), None if own is None else own.to(dtype)


def _arrays(pair: Pair) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both arrays; kernels take an empty one where destinations do not take part."""
    of_edges, own = pair
    return _array(of_edges), _array(of_edges[:0] if own is None else own)


def _array(x: Tensor) -> NDArray[Any]:
    return x.detach().contiguous().numpy()


def _flat(x: Tensor) -> NDArray[Any]:
    return _array(x).reshape(-1)
