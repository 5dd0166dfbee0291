"""Kernels in Triton for CUDA, with one launch per operation and no temporaries per edge.

A program computes a tile of rows and columns. It sums every row in the order of its entries, so
results repeat bit for bit, and equal those of other backends where these are exact. Tiles are not
tuned at run time, because timings differ between runs, and with the tile the last bits of products.

If ``TRITON_INTERPRET=1`` is set before this module is imported, the same programs run in Python on
the CPU, for tests.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from hopper.graph.block import Edges
from hopper.ops import triton_programs
from hopper.ops.csr import Csr, destinations
from hopper.ops.groups import TILE_ROWS, Groups
from hopper.ops.torch_kernels import Kernels, Pair, empty_pair

_TILE: Final = 256
"""How many numbers a program computes at a time."""
_MOST_COLUMNS: Final = 128
_DEPTH: Final = 32
"""How many terms of a product a program reads at a time."""
_AS_ON_THE_CPU: Final = {"enable_fp_fusion": False}
"""The option that rounds products before they are added."""


class TritonKernels(Kernels):
    """All operations of a backend, for CUDA."""

    name = "triton"

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """Compute :meth:`Kernels.gather_sum`."""
        width = x.shape[1]
        heads = 1 if weights is None else weights.shape[1]
        out = x.new_empty(csr.num_rows, width)
        arrays = out, csr.indptr, csr.indices, x.contiguous(), _contiguous(weights)
        _by_row(triton_programs.gather_sum, arrays, csr.num_rows, width, heads, width // heads)
        return out

    def edge_dot(self, block: Edges, x: Tensor, y: Tensor) -> Tensor:
        """Compute :meth:`Kernels.edge_dot`."""
        heads, width = x.shape[1:]
        out = x.new_empty(block.num_edges, heads)
        if not out.numel() or not width:
            return out.zero_()
        edges, columns = _tile(width)
        triton_programs.edge_dot[triton.cdiv(block.num_edges, edges), heads](
            out,
            block.indices,
            destinations(block),
            x.contiguous(),
            y.contiguous(),
            block.num_edges,
            heads,
            width,
            ROWS=edges,
            COLUMNS=columns,
            SUMS=_sums_of(x),
            **_AS_ON_THE_CPU,
        )
        return out

    def softmax(self, block: Edges, logits: Pair) -> Pair:
        """Compute :meth:`Kernels.softmax`."""
        result = empty_pair(logits)
        arrays = *result, block.indptr, *map(_contiguous, logits)
        _by_row(triton_programs.softmax, arrays, block.num_dst, logits[0].shape[1])
        return result

    def softmax_gradient(self, block: Edges, shares: Pair, grads: Pair) -> Pair:
        """Compute :meth:`Kernels.softmax_gradient`."""
        result = empty_pair(shares)
        arrays = *result, block.indptr, *shares, *map(_contiguous, grads)
        _by_row(triton_programs.softmax_gradient, arrays, block.num_dst, shares[0].shape[1])
        return result

    def grouped_products(
        self, groups: Groups, x: Tensor, matrices: Tensor, biases: Tensor | None, sign: int = 1
    ) -> Tensor:
        """Compute :func:`hopper.ops.grouped.grouped_product`; with the sign -1, from the gradients
        of products and transposed matrices, the gradients of rows, [rows, ...]."""
        depth, width = matrices.shape[-2:]
        out = x.new_empty(groups.products if sign > 0 else groups.rows, *x.shape[1:-1], width)
        if not out.numel():
            return out
        tables = groups.tables(x.device)
        tiles = tables.products if sign > 0 else tables.rows
        heads, columns = out[0].numel() // width, _columns_of_product(width)
        if x.dim() == 2:
            matrices = matrices.unsqueeze(1)
        triton_programs.grouped_rows[len(tiles), triton.cdiv(width, columns), heads](
            out,
            tiles,
            tables.shifts,
            x.contiguous(),
            matrices,
            _contiguous(biases),
            sign,
            heads,
            depth,
            width,
            *matrices.stride(),
            ROWS=TILE_ROWS,
            DEPTH=_DEPTH,
            COLUMNS=columns,
            SUMS=_sums_of(x),
        )
        return out

    def grouped_gradients(
        self, groups: Groups, rows: Tensor, grad: Tensor, like: Tensor, *, has_biases: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the gradients of the matrices and biases of a grouped product.

        Long groups are summed in chunks, which are then added in their order. The first gradient
        gets the layout of ``like``, [groups, ..., in, out] on any device.
        """
        tables, (depth, width) = groups.tables(grad.device), like.shape[-2:]
        chunks, numbers = len(tables.chunks), like[0].numel()
        if like.stride(0) != numbers:
            like = torch.empty(like.shape, device="meta")
        dtype = grad.dtype if grad.dtype == torch.float64 else torch.float32
        out = torch.empty_strided(
            (chunks, *like.shape[1:]), like.stride(), dtype=dtype, device=grad.device
        )
        of_biases = out.new_empty(chunks, width) if has_biases else None
        heads, columns = numbers // (depth * width), _columns_of_product(width)
        strides = out.stride() if like.dim() == 4 else (out.stride(0), 0, *out.stride()[1:])
        tiles = triton.cdiv(depth, _DEPTH) * triton.cdiv(width, columns)
        triton_programs.grouped_gradients[chunks, tiles, heads](
            out,
            of_biases,
            tables.chunks,
            tables.shifts,
            rows.contiguous(),
            grad,
            heads,
            depth,
            width,
            *strides,
            ROWS=TILE_ROWS,
            DEPTH=_DEPTH,
            COLUMNS=columns,
            SUMS=_sums_of(grad),
        )
        if chunks > len(groups):
            by_chunk = out.as_strided((chunks, numbers), (numbers, 1))
            sums = self.gather_sum(tables.chunks_of_groups, by_chunk, None)
            out = sums.as_strided(like.shape, like.stride())
            if of_biases is not None:
                of_biases = self.gather_sum(tables.chunks_of_groups, of_biases, None)
        biases = None if of_biases is None else of_biases.to(grad.dtype)
        return out.to(grad.dtype), biases

    def row_keys(self, key: int, first: Tensor, second: Tensor | None) -> Tensor:
        """Compute the keys [n] int64 of :func:`hopper.ops.counter_mask.row_keys`."""
        out, rows = torch.empty_like(first, memory_format=torch.contiguous_format), first.numel()
        if rows:
            words = first.contiguous(), _contiguous(second)
            triton_programs.row_keys[(triton.cdiv(rows, _TILE),)](
                out, key, *words, rows, ROWS=_TILE
            )
        return out

    def drop(self, x: Tensor, keys: Tensor, threshold: int, first: int) -> Tensor:
        """Compute :func:`hopper.ops.counter_mask.drop_and_scale` of rows x [n, width]."""
        out = torch.empty_like(x)
        arrays = out, x, keys.contiguous()
        _by_row(triton_programs.drop, arrays, *x.shape, threshold, first)
        return out


def _by_row(
    program: Any, arrays: tuple[Tensor | None, ...], num_rows: int, width: int, *sizes: int
) -> None:
    """Run a program over all rows and columns of a pattern. The first array is its result."""
    if not num_rows or not width:
        return
    rows, columns = _tile(width)
    out = arrays[0]
    assert out is not None
    program[triton.cdiv(num_rows, rows), triton.cdiv(width, columns)](
        *arrays,
        num_rows,
        width,
        *sizes,
        ROWS=rows,
        COLUMNS=columns,
        SUMS=_sums_of(out),
        **_AS_ON_THE_CPU,
    )


def _columns_of_product(width: int) -> int:
    """Return the columns of a tile of products, a power of two that Triton can multiply."""
    return min(64, max(16, triton.next_power_of_2(width)))


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _tile(width: int) -> tuple[int, int]:
    """Return the rows and columns of a program's tile, powers of two."""
    columns = min(triton.next_power_of_2(width), _MOST_COLUMNS)
    return _TILE // columns, columns


def _sums_of(x: Tensor) -> Any:
    """Return the dtype of sums of x, which is never a 16-bit one."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32
