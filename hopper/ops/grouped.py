"""Products of groups of rows, each with a matrix of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.device_copies import to_device
from hopper.errors import RequestError
from hopper.ops.precision import in_full, product_dtype

_MOST_PADDED: Final = 4
"""times the rows that a padded batch of groups may have"""


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
        ctx.padding = _Padding.of(bounds, rows.device)
        ctx.save_for_backward(rows if needs_matrices else None, matrices if needs_rows else None)
        return _products(rows, matrices, bounds, ctx.padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, matrices = ctx.saved_tensors
        grad_rows = grad_matrices = None
        if matrices is not None:
            grad_rows = _products(grad, matrices.transpose(1, 2), ctx.bounds, ctx.padding)
        if rows is not None:
            if ctx.padding is not None:
                spread = ctx.padding.spread
                return grad_rows, spread(rows).mT @ spread(grad), None
            grad_matrices = grad.new_zeros(ctx.shape)
            for group, (first, stop) in enumerate(pairwise(ctx.bounds)):
                if stop > first:
                    torch.mm(rows[first:stop].t(), grad[first:stop], out=grad_matrices[group])
        return grad_rows, grad_matrices, None


class _Padding:
    """Groups as one batch of equal size: hundreds of small products are one kernel on a GPU.

    Parameters
    ----------
    bounds: as of :func:`grouped_product`.
    """

    def __init__(self, bounds: Sequence[int], device: torch.device) -> None:
        sizes = [stop - first for first, stop in pairwise(bounds)]
        self._shape = len(sizes), max(sizes)
        skipped = torch.tensor(
            [group * self._shape[1] - first for group, first in enumerate(bounds[:-1])]
        )
        places = torch.arange(bounds[-1])
        places += skipped.repeat_interleave(torch.tensor(sizes), output_size=bounds[-1])
        self._places = to_device(places, device)

    @classmethod
    def of(cls, bounds: Sequence[int], device: torch.device) -> _Padding | None:
        """None where a kernel a group is the better choice: on the CPU, and where most of the batch
        would be padding."""
        if device.type == "cpu":
            return None
        largest = max((stop - first for first, stop in pairwise(bounds)), default=0)
        if not bounds[-1] or largest * (len(bounds) - 1) > _MOST_PADDED * bounds[-1]:
            return None
        return cls(bounds, device)

    def spread(self, rows: Tensor) -> Tensor:
        """[groups, largest, width]: rows with zeros behind each group's."""
        groups, largest = self._shape
        padded = rows.new_zeros(groups * largest, rows.shape[1])
        return padded.index_copy_(0, self._places, rows).view(groups, largest, -1)

    def collect(self, batch: Tensor) -> Tensor:
        """[n, width]: the rows of a batch that are no padding."""
        return batch.flatten(0, 1).index_select(0, self._places)


def _products(
    rows: Tensor, matrices: Tensor, bounds: tuple[int, ...], padding: _Padding | None
) -> Tensor:
    if padding is not None:
        return padding.collect(padding.spread(rows) @ matrices)
    out = rows.new_empty(rows.shape[0], matrices.shape[2])
    for group, (first, stop) in enumerate(pairwise(bounds)):
        if stop > first:
            torch.mm(rows[first:stop], matrices[group], out=out[first:stop])
    return out
