"""Products of groups of rows, each with a matrix of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.device_copies import to_device
from hopper.errors import RequestError
from hopper.ops.precision import in_full, product_dtype

_OWN_LAUNCHES: Final = 6
"""kernels that spreading rows over batches and collecting them takes"""


def grouped_product(rows: Tensor, matrices: Tensor, bounds: Sequence[int]) -> Tensor:
    """``rows[bounds[g]:bounds[g + 1]] @ matrices[g]`` for every group g, in one tensor.

    One node of the graph of gradients stands for all groups, of which there may be hundreds.

    Parameters
    ----------
    rows: [n, in] floating point.
    matrices: [groups, in, out], of the same dtype.
    bounds: [groups + 1] ascending, from 0 to n; a group may be empty.

    Returns
    -------
    [n, out].

    Raises
    ------
    RequestError
        Shapes, dtypes or bounds do not fit each other.
    """
    rows, matrices = in_full(rows), in_full(matrices)
    fits = (
        rows.dim() == 2
        and matrices.dim() == 3
        and rows.shape[1] == matrices.shape[1]
        and rows.dtype == matrices.dtype
        and len(bounds) == matrices.shape[0] + 1
        and bounds[0] == 0
        and bounds[-1] == rows.shape[0]
    )
    if not fits:
        raise RequestError(
            "grouped_product: expected rows [n, in], matrices [groups, in, out] of one dtype and "
            f"groups + 1 bounds from 0 to n; given {list(rows.shape)} {rows.dtype}, "
            f"{list(matrices.shape)} {matrices.dtype} and bounds {list(bounds)}"
        )
    dtype = product_dtype(rows)
    out: Tensor = _GroupedProduct.apply(rows.to(dtype), matrices.to(dtype), tuple(bounds))
    return in_full(out)


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor, bounds: tuple[int, ...]) -> Tensor:
        needs_rows, needs_matrices = ctx.needs_input_grad[:2]
        ctx.bounds, ctx.shape = bounds, matrices.shape
        ctx.batches = _Batches.of(bounds, rows.device)
        ctx.save_for_backward(rows if needs_matrices else None, matrices if needs_rows else None)
        return _products(rows, matrices, bounds, ctx.batches)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, matrices = ctx.saved_tensors
        grad_rows = grad_matrices = None
        if matrices is not None:
            grad_rows = _products(grad, matrices.transpose(1, 2), ctx.bounds, ctx.batches)
        if rows is not None and ctx.batches is not None:
            grad_matrices = ctx.batches.matrix_gradients(rows, grad, ctx.shape)
        elif rows is not None:
            grad_matrices = grad.new_zeros(ctx.shape)
            for group, (first, stop) in enumerate(pairwise(ctx.bounds)):
                if stop > first:
                    torch.mm(rows[first:stop].t(), grad[first:stop], out=grad_matrices[group])
        return grad_rows, grad_matrices, None


class _Batches:
    """Groups of about the same size as one batch of equal size: hundreds of small products are some
    ten kernels on a GPU, and at most half of what they multiply is padding.

    Parameters
    ----------
    bounds: as of :func:`grouped_product`; some group has rows.
    """

    def __init__(self, bounds: Sequence[int], device: torch.device) -> None:
        sizes = np.diff(bounds)
        classes = _size_classes(sizes)
        # Stable, so that groups of a size class stay in their order.
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
        moved = to_device(torch.from_numpy(np.stack([starts - bounds[:-1], sizes])), device)
        places = torch.arange(bounds[-1], device=device)
        places += moved[0].repeat_interleave(moved[1], output_size=bounds[-1])
        self._places = places

    @classmethod
    def of(cls, bounds: Sequence[int], device: torch.device) -> _Batches | None:
        """None where a kernel a group is the better choice: on the CPU, and where no launches would
        be saved."""
        if device.type == "cpu":
            return None
        sizes = np.diff(bounds)
        sizes = sizes[sizes > 0]
        if len(np.unique(_size_classes(sizes))) + _OWN_LAUNCHES >= len(sizes):
            return None
        return cls(bounds, device)

    def products(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """[n, out]: every group's rows times its matrix."""
        spread, chosen = self._spread(rows), matrices.index_select(0, self._order)
        out = rows.new_empty(self._rows, matrices.shape[2])
        for groups, largest, place in self._pieces:
            torch.bmm(
                _batch(spread[place], largest), chosen[groups], out=_batch(out[place], largest)
            )
        return out.index_select(0, self._places)

    def matrix_gradients(self, rows: Tensor, grad: Tensor, shape: torch.Size) -> Tensor:
        """[groups, in, out]: the gradients of the matrices; 0 of a group without rows."""
        left, right = self._spread(rows), self._spread(grad)
        found = grad.new_empty(self._order.numel(), *shape[1:])
        for groups, largest, place in self._pieces:
            one, other = _batch(left[place], largest), _batch(right[place], largest)
            torch.bmm(one.mT, other, out=found[groups])
        return grad.new_zeros(shape).index_copy_(0, self._order, found)

    def _spread(self, rows: Tensor) -> Tensor:
        """[padded rows, width]: rows with zeros behind each group's."""
        padded = rows.new_zeros(self._rows, rows.shape[1])
        return padded.index_copy_(0, self._places, rows)


def _batch(rows: Tensor, largest: int) -> Tensor:
    return rows.view(-1, largest, rows.shape[1])


def _size_classes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of groups that have rows: k of those with more than 2^(k-1) and at most 2^k."""
    return np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)


def _products(
    rows: Tensor, matrices: Tensor, bounds: tuple[int, ...], batches: _Batches | None
) -> Tensor:
    if batches is not None:
        return batches.products(rows, matrices)
    out = rows.new_empty(rows.shape[0], matrices.shape[2])
    for group, (first, stop) in enumerate(pairwise(bounds)):
        if stop > first:
            torch.mm(rows[first:stop], matrices[group], out=out[first:stop])
    return out
