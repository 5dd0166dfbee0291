"""Products of stored rows and weights: how they are made, and which ones are kept.

Destinations are among the sources, so a layer multiplies the same rows more than once. A product
that was made of all rows also gives the product of the first rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.ops.precision import product_dtype
from hopper.ops.row_reader import RowReader

Made = tuple[bool, int, torch.dtype, bool]
"""Whether the weight was transposed, its version, the product's dtype, and whether gradients were
enabled."""


@dataclass
class Products:
    """The products of rows that were made, and those that are expected."""

    made: list[tuple[Tensor, Made, Callable[[], Tensor | None]]] = field(default_factory=list)
    """the weight of a product that was or can be made, how it is made, and what returns the product
    [rows, ...]; None if it was freed or changed"""
    expected: list[tuple[Tensor, int]] = field(default_factory=list)
    """pairs of a weight [out, dim] and the number of first rows to multiply by it"""

    def find(
        self, weight: Tensor, transposed: bool, count: int, dtype: torch.dtype
    ) -> Tensor | None:
        """Return a product [count, out] that was made of at least so many rows; None = none was."""
        wanted = _how_made(weight, transposed, dtype)
        for made_weight, how, product in self.made:
            if made_weight is weight and how == wanted:
                out = product()
                if out is not None and len(out) >= count:
                    return out[:count]
        return None

    def keep(
        self, weight: Tensor, out: Tensor, *, transposed: bool = False, until_used: bool
    ) -> None:
        """Remember a product for :meth:`find`, for as long as others refer to it; with
        ``until_used``, at least until it is first found."""
        until_first_use = [out] if until_used else []
        reference, version = weakref.ref(out), out._version

        def find() -> Tensor | None:
            product = until_first_use.pop() if until_first_use else reference()
            return None if product is None or product._version != version else product

        self.made.append((weight, _how_made(weight, transposed, out.dtype), find))

    def supply(self, weight: Tensor, make: Callable[[], Tensor]) -> None:
        """Register a function that makes a product when it is looked for."""
        self.made.append((weight, _how_made(weight, False, product_dtype(weight)), make))


def _how_made(weight: Tensor, transposed: bool, dtype: torch.dtype) -> Made:
    return transposed, weight._version, dtype, torch.is_grad_enabled()


def multiply(
    reader: RowReader, counts: Sequence[int], dtype: torch.dtype, matrices: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Multiply the first ``counts[i]`` rows by the i-th matrix [out, dim] of the given dtype, to
    which rows are converted.

    One reading of the rows serves all matrices. The products have a gradient for the matrices.
    """
    return _Multiply.apply(reader, counts, dtype, *matrices)


class _Multiply(torch.autograd.Function):
    """The function :func:`multiply`, whose backward pass reads the rows again."""

    @staticmethod
    def forward(
        ctx: Any, reader: RowReader, counts: Sequence[int], dtype: torch.dtype, *matrices: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.reader, ctx.counts, ctx.dtype = reader, counts, dtype
        ctx.shapes = [matrix.shape for matrix in matrices]
        make = torch.empty if reader.is_whole else torch.zeros
        outs = [
            make(count, len(matrix), dtype=matrix.dtype)
            for matrix, count in zip(matrices, counts, strict=True)
        ]
        for block in reader.blocks(dtype):
            for matrix, count, out in zip(matrices, counts, outs, strict=True):
                first_rows = block if count == reader.count else block.before(count)
                if isinstance(first_rows.places, slice):
                    torch.mm(first_rows.values, matrix.t(), out=out[first_rows.places])
                else:
                    out.index_copy_(0, first_rows.places, first_rows.values @ matrix.t())
        return tuple(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Sum the gradients of the matrices over blocks of rows that are read again."""
        reader, needed = ctx.reader, ctx.needs_input_grad[3:]
        # Sums over blocks have float32 at least, as a product over all rows has inside.
        sum_dtype = torch.promote_types(ctx.dtype, torch.float32)
        sums = [
            torch.zeros(shape, dtype=sum_dtype) if needs and grad is not None else None
            for shape, needs, grad in zip(ctx.shapes, needed, grads, strict=True)
        ]
        if any(total is not None for total in sums):
            for block in reader.blocks(ctx.dtype):
                for grad, count, total in zip(grads, ctx.counts, sums, strict=True):
                    if total is None or grad is None:
                        continue
                    first_rows = block if count == reader.count else block.before(count)
                    block_grad = first_rows.of(grad).t()
                    if total.dtype == ctx.dtype:
                        total.addmm_(block_grad, first_rows.values)
                    else:
                        total += block_grad @ first_rows.values
        gradients = [None if total is None else total.to(ctx.dtype) for total in sums]
        return (None, None, None, *gradients)
