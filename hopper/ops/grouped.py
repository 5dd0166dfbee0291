"""Products of groups of rows with one matrix for each group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.device.copies import to_device
from hopper.errors import RequestError
from hopper.ops.precision import in_full, product_dtype

_OWN_LAUNCHES: Final = 6
"""The number of kernels that copy rows to batches and back."""


def grouped_product(
    rows: Tensor, matrices: Tensor, bounds: Sequence[int], biases: Tensor | None = None
) -> Tensor:
    """Compute ``rows[bounds[g]:bounds[g + 1]] @ matrices[g]`` for every group g, in one tensor.

    It adds one node to the autograd graph, and not one for each of possibly hundreds of groups.

    Parameters
    ----------
    rows: [n, in] floating point, or [n, heads, in], of which each head has matrices of its own.
    matrices: [groups, in, out], or [groups, heads, in, out], of the same dtype.
    bounds: [groups + 1] ascending, from 0 to n. Groups may be empty.
    biases: [groups, out], what is added to each group's products, if rows have no heads.

    Returns
    -------
    [n, out], or [n, heads, out].

    Raises
    ------
    RequestError
        Shapes, dtypes or bounds do not fit each other.
    """
    rows, matrices = in_full(rows), in_full(matrices)
    biases = None if biases is None else in_full(biases)
    fits = (
        rows.dim() in (2, 3)
        and matrices.dim() == rows.dim() + 1
        and rows.shape[1:] == matrices.shape[1:-1]
        and rows.dtype == matrices.dtype
        and len(bounds) == matrices.shape[0] + 1
        and bounds[0] == 0
        and bounds[-1] == rows.shape[0]
        and (biases is None or (biases.shape == matrices.shape[::2] and rows.dim() == 2))
    )
    if not fits:
        raise RequestError(
            "grouped_product: expected rows [n, in], matrices [groups, in, out] of one dtype and "
            "groups + 1 bounds from 0 to n, or rows [n, heads, in] and matrices [groups, heads, "
            f"in, out]; given {list(rows.shape)} {rows.dtype}, {list(matrices.shape)} "
            f"{matrices.dtype} and bounds {list(bounds)}"
        )
    dtype = product_dtype(rows)
    numbers = (x if x is None else x.to(dtype) for x in (rows, matrices, biases))
    out: Tensor = _GroupedProduct.apply(*numbers, tuple(bounds))
    return in_full(out)


class _GroupedProduct(torch.autograd.Function):
    """Multiplies each group of rows by the group's matrix."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrices: Tensor, biases: Tensor | None, bounds: tuple[int, ...]
    ) -> Tensor:
        """Compute all products, and keep only what the wanted gradients need."""
        needs_rows, needs_matrices = ctx.needs_input_grad[:2]
        ctx.bounds, ctx.shape = bounds, matrices.shape
        ctx.batches = _Batches.of(bounds, rows.device)
        ctx.save_for_backward(rows if needs_matrices else None, matrices if needs_rows else None)
        return _products(rows, matrices, bounds, ctx.batches, biases)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Multiply by the transposed matrices for the rows, and by the rows for the matrices, and
        sum the rows for the biases."""
        rows, matrices = ctx.saved_tensors
        grad_rows = grad_matrices = grad_biases = None
        if ctx.needs_input_grad[2]:
            grad_biases = grad.new_empty(ctx.shape[::2])
            for group, (first, stop) in enumerate(pairwise(ctx.bounds)):
                torch.sum(grad[first:stop], 0, out=grad_biases[group])
        if matrices is not None:
            grad_rows = _products(grad, matrices.mT, ctx.bounds, ctx.batches)
        if rows is not None and ctx.batches is not None:
            grad_matrices = ctx.batches.matrix_gradients(rows, grad, ctx.shape)
        elif rows is not None:
            grad_matrices = grad.new_zeros(ctx.shape)
            for group, (first, stop) in enumerate(pairwise(ctx.bounds)):
                if stop > first:
                    _multiply(
                        _by_head(rows[first:stop]).mT,
                        _by_head(grad[first:stop]),
                        grad_matrices[group],
                    )
        return grad_rows, grad_matrices, grad_biases, None


class _Batches:
    """Batches of groups of similar size, padded to equal size.

    Hundreds of small products become about ten kernels on a GPU. At most half of the numbers that
    they multiply are padding.

    Parameters
    ----------
    bounds: as in :func:`grouped_product`. At least one group has rows.
    """

    def __init__(self, bounds: Sequence[int], device: torch.device) -> None:
        sizes = np.diff(bounds)
        classes = _size_classes(sizes)
        # A stable sort keeps groups of a size class in their order.
        order = np.argsort(classes, kind="stable")
        order = order[sizes[order] > 0]
        _, counts = np.unique(classes[order], return_counts=True)
        starts = np.zeros(len(sizes), np.int64)
        self._pieces: list[tuple[slice, int, slice]] = []
        group = row = 0
        for count in counts.tolist():
            members = order[group : group + count]
            largest = int(sizes[members].max())
            starts[members] = row + largest * np.arange(count)
            stop = row + largest * count
            self._pieces.append((slice(group, group + count), largest, slice(row, stop)))
            group, row = group + count, stop
        self._rows = row
        self._order = to_device(torch.from_numpy(order), device)
        shifts = to_device(torch.from_numpy(np.stack([starts - bounds[:-1], sizes])), device)
        padded_rows = torch.arange(bounds[-1], device=device)
        padded_rows += shifts[0].repeat_interleave(shifts[1], output_size=bounds[-1])
        self._padded_rows = padded_rows

    @classmethod
    def of(cls, bounds: Sequence[int], device: torch.device) -> _Batches | None:
        """Make batches; None if they save no kernels, and always on the CPU."""
        if device.type == "cpu":
            return None
        sizes = np.diff(bounds)
        sizes = sizes[sizes > 0]
        if len(np.unique(_size_classes(sizes))) + _OWN_LAUNCHES >= len(sizes):
            return None
        return cls(bounds, device)

    def products(self, rows: Tensor, matrices: Tensor, biases: Tensor | None) -> Tensor:
        """Multiply every group's rows by its matrix, and add its bias, to [n, out]."""
        spread, chosen_matrices = self._pad(rows), matrices.index_select(0, self._order)
        out = rows.new_empty(self._rows, *matrices.shape[1:-2], matrices.shape[-1])
        for groups, largest, place in self._pieces:
            batch, product = _batch(spread[place], largest), _batch(out[place], largest)
            torch.matmul(batch, chosen_matrices[groups], out=product)
            if biases is not None:
                product += biases.index_select(0, self._order[groups]).unsqueeze(1)
        return out.index_select(0, self._padded_rows)

    def matrix_gradients(self, rows: Tensor, grad: Tensor, shape: torch.Size) -> Tensor:
        """Return the gradients [groups, ...] of matrices; zero for groups without rows."""
        left, right = self._pad(rows), self._pad(grad)
        gradients = grad.new_empty(self._order.numel(), *shape[1:])
        for groups, largest, place in self._pieces:
            inputs, outputs = _batch(left[place], largest), _batch(right[place], largest)
            torch.matmul(inputs.mT, outputs, out=gradients[groups])
        return grad.new_zeros(shape).index_copy_(0, self._order, gradients)

    def _pad(self, rows: Tensor) -> Tensor:
        """Copy rows to [padded rows, ...], with zeros after each group's rows."""
        padded = rows.new_zeros(self._rows, *rows.shape[1:])
        return padded.index_copy_(0, self._padded_rows, rows)


def _batch(rows: Tensor, largest: int) -> Tensor:
    """Return rows as [groups, largest, width], or [groups, heads, largest, width]."""
    batch = rows.view(-1, largest, *rows.shape[1:])
    return batch if rows.dim() == 2 else batch.transpose(1, 2)


def _by_head(rows: Tensor) -> Tensor:
    """Return rows [n, width] as they are, and [n, heads, width] as [heads, n, width]."""
    return rows if rows.dim() == 2 else rows.transpose(0, 1)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Multiply two matrices, or two for each head, into ``out``."""
    (torch.mm if left.dim() == 2 else torch.bmm)(left, right, out=out)


def _size_classes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size class k of each group, with more than 2^(k-1) and at most 2^k rows."""
    return np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)


def _products(
    rows: Tensor,
    matrices: Tensor,
    bounds: tuple[int, ...],
    batches: _Batches | None,
    biases: Tensor | None = None,
) -> Tensor:
    if batches is not None:
        return batches.products(rows, matrices, biases)
    out = rows.new_empty(*rows.shape[:-1], matrices.shape[-1])
    for group, (first, stop) in enumerate(pairwise(bounds)):
        if stop > first and biases is not None:
            torch.addmm(biases[group], rows[first:stop], matrices[group], out=out[first:stop])
        elif stop > first:
            _multiply(_by_head(rows[first:stop]), matrices[group], _by_head(out[first:stop]))
    return out
