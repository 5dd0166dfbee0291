"""Products of groups of rows with one matrix for each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.errors import RequestError
from hopper.ops import selection
from hopper.ops.groups import Groups
from hopper.ops.precision import in_full, product_dtype


def grouped_product(
    rows: Tensor, matrices: Tensor, groups: Groups | Sequence[int], biases: Tensor | None = None
) -> Tensor:
    """Compute ``rows[of group g] @ matrices[g]`` for every group g, in one tensor [products, out],
    or [products, heads, out].

    It adds one node to the autograd graph, and not one for each of possibly hundreds of groups. On
    a GPU it is one kernel, and its gradients two to four.

    Parameters
    ----------
    rows: [n, in] floating point, or [n, heads, in], of which each head has matrices of its own.
    matrices: [groups, in, out], or [groups, heads, in, out], of the same dtype.
    groups: the rows of each group, or the bounds [groups + 1] of groups that have rows of their
        own.
    biases: [groups, out], what is added to each group's products, if rows have no heads.

    Raises
    ------
    RequestError: shapes, dtypes or bounds do not fit each other.
    """
    groups = groups if isinstance(groups, Groups) else Groups(groups)
    rows, matrices = in_full(rows), in_full(matrices)
    biases = None if biases is None else in_full(biases)
    fits = (
        rows.dim() in (2, 3)
        and matrices.dim() == rows.dim() + 1
        and rows.shape[1:] == matrices.shape[1:-1]
        and rows.dtype == matrices.dtype
        and len(groups) == matrices.shape[0]
        and groups.bounds[0] == 0
        and groups.rows == rows.shape[0]
        and (biases is None or (biases.shape == matrices.shape[::2] and rows.dim() == 2))
    )
    if not fits:
        raise RequestError(
            "grouped_product: expected rows [n, in], matrices [groups, in, out] of one dtype and "
            "groups + 1 bounds from 0 to n, or rows [n, heads, in] and matrices [groups, heads, "
            f"in, out]; given {list(rows.shape)} {rows.dtype}, {list(matrices.shape)} "
            f"{matrices.dtype} and bounds {list(groups.bounds)} that read {groups.rows} rows"
        )
    if rows.dim() == 3 and rows.shape[1] == 1:
        return grouped_product(rows.squeeze(1), matrices.squeeze(1), groups).unsqueeze(1)
    if rows.dim() == 3 and groups.rows != groups.products:
        rows, groups = torch.cat([rows[read] for read, _ in groups]), Groups(groups.bounds)
    dtype = product_dtype(rows)
    numbers = (x if x is None else x.to(dtype) for x in (rows, matrices, biases))
    out: Tensor = _GroupedProduct.apply(*numbers, groups)
    return in_full(out)


def lay_out_groups(groups: Groups, device: torch.device) -> None:
    """Copy ahead of time what programs of Triton will read, if they are what multiplies."""
    if selection.triton_for(device) is not None:
        groups.tables(device)


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrices: Tensor, biases: Tensor | None, groups: Groups
    ) -> Tensor:
        """Compute all products, and keep only what the wanted gradients need."""
        needs_rows, needs_matrices = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:3])
        ctx.groups, ctx.kernels = groups, selection.triton_for(rows.device)
        # Gradients are laid out like the matrices, so that parameters take them as they are.
        ctx.layout = torch.empty_like(matrices, device="meta")
        ctx.save_for_backward(rows if needs_matrices else None, matrices if needs_rows else None)
        if ctx.kernels is not None:
            return ctx.kernels.grouped_products(groups, rows, matrices, biases)
        out = rows.new_empty(groups.products, *rows.shape[1:-1], matrices.shape[-1])
        for read, made, members, number in groups.shared:
            left, products = _batch(rows[read]), _batch(out[made], number)
            if number > 1:
                left = left.expand(number, -1, -1)
            if biases is None:
                _multiply(left, matrices[members], products)
            elif number > 1:
                torch.baddbmm(biases[members, None], left, matrices[members], out=products)
            else:
                torch.addmm(biases[members], left, matrices[members], out=products)
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Multiply by the transposed matrices for the rows, and by the rows for the matrices, and
        sum the rows for the biases."""
        (rows, matrices), groups = ctx.saved_tensors, ctx.groups
        grad_rows = grad_matrices = grad_biases = None
        if ctx.kernels is not None:
            grad = grad.contiguous()
            if matrices is not None:
                grad_rows = ctx.kernels.grouped_products(groups, grad, matrices.mT, None, -1)
            if rows is not None:
                grad_matrices, grad_biases = ctx.kernels.grouped_gradients(
                    groups, rows, grad, ctx.layout, has_biases=ctx.needs_input_grad[2]
                )
            return grad_rows, grad_matrices, grad_biases, None
        if matrices is not None:
            grad_rows = grad.new_empty(groups.rows, *grad.shape[1:-1], matrices.shape[-2])
        if ctx.needs_input_grad[2]:
            grad_biases = grad.new_empty(len(groups), grad.shape[-1])
        if rows is not None:
            grad_matrices = torch.empty_like(ctx.layout, device=grad.device)
        for read, made, members, number in groups.shared:
            upstream = _batch(grad[made], number)
            if grad_biases is not None:
                torch.sum(upstream, -2, out=grad_biases[members])
            if number > 1:
                # One product adds up what all groups that read these rows contribute.
                upstream = upstream.transpose(0, 1).flatten(1)
            if grad_rows is not None:
                weights = matrices[members].mT
                weights = weights.flatten(0, 1) if number > 1 else weights
                _multiply(upstream, weights, _batch(grad_rows[read]))
            if grad_matrices is not None and number > 1:
                products = upstream.mT @ rows[read]
                grad_matrices[members] = products.unflatten(0, (number, -1)).mT
            elif grad_matrices is not None:
                _multiply(_batch(rows[read]).mT, upstream, grad_matrices[members])
        return grad_rows, grad_matrices, grad_biases, None


def _batch(rows: Tensor, number: int = 1) -> Tensor:
    """Return rows [n, heads, width] as [heads, n, width], and rows [number * n, width] of several
    groups as [number, n, width]."""
    if rows.dim() == 3:
        return rows.transpose(0, 1)
    return rows if number == 1 else rows.unflatten(0, (number, -1))


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Multiply two matrices, or pairs of them, into ``out``."""
    (torch.mm if left.dim() == 2 else torch.bmm)(left, right, out=out)
