"""Sums of feature-wise modulated, activated messages (GNN-FiLM), in one operation."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from cache_server.kernel import kernel
from hopper.device.kernel_threads import FEW_NUMBERS, threads_for
from hopper.errors import RequestError
from hopper.graph.block import Edges
from hopper.ops.csr import destinations_to_sources, edge_order
from hopper.ops.edges import check_constant_weights, destination_rows, edge_sum, source_rows
from hopper.ops.message_passing import check_rows
from hopper.ops.precision import in_full


def modulated_sum(block: Edges, x: Tensor, gamma: Tensor, beta: Tensor, w: Tensor) -> Tensor:
    """Sum ``w_e relu(gamma_v * x_u + beta_v)`` over the sampled edges e = (u, v) of each v.

    On the CPU in float32 and float64, no message is stored, forward or backward, so memory does not
    grow with the number of edges. Otherwise [edges, D] values are materialised, and four such
    tensors are kept for the backward pass. Rows are added in a fixed order in both cases, so
    results repeat bit for bit.

    Parameters
    ----------
    x: [num_src, D] floating point.
    gamma, beta: [num_dst, D] of x's dtype.
    w: [edges] of x's dtype, constants without a gradient.

    Returns
    -------
    [num_dst, D]; zero for destinations without sampled edges.

    Raises
    ------
    RequestError
        The shapes or dtypes do not fit the block or each other, or w requires a gradient.
    """
    x, gamma, beta = in_full(x), in_full(gamma), in_full(beta)
    check_rows("x", x, block.num_src)
    for name, value in (("gamma", gamma), ("beta", beta)):
        check_rows(name, value, block.num_dst)
        if x.dim() != 2 or value.shape[1:] != x.shape[1:] or value.dtype != x.dtype:
            raise RequestError(
                f"modulated_sum: expected x [num_src, D] and {name} [num_dst, D] of one dtype; "
                f"given x {list(x.shape)} {x.dtype}, {name} {list(value.shape)} {value.dtype}"
            )
    check_constant_weights("modulated_sum", block, x, w)
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return _compose(block, x, gamma, beta, w)
    out: Tensor = _ModulatedSum.apply(block, x, gamma, beta, w)
    return out


def _compose(block: Edges, x: Tensor, gamma: Tensor, beta: Tensor, w: Tensor) -> Tensor:
    """Compute :func:`modulated_sum` from operations on values per edge, on any device."""
    scaled = destination_rows(block, gamma) * source_rows(block, x)
    return edge_sum(block, torch.relu(scaled + destination_rows(block, beta)), w)


class _ModulatedSum(torch.autograd.Function):
    """Computes :func:`modulated_sum` on the CPU without an array of values per edge."""

    @staticmethod
    def forward(
        ctx: Any, block: Edges, x: Tensor, gamma: Tensor, beta: Tensor, w: Tensor
    ) -> Tensor:
        """Modulate and sum along the edges."""
        x, gamma, beta, w = (value.contiguous() for value in (x, gamma, beta, w))
        ctx.block = block
        ctx.save_for_backward(x, gamma, beta, w)
        out = torch.empty_like(gamma)
        with threads_for(block.num_edges * x.shape[1], FEW_NUMBERS):
            _sum(*_arrays(block.indptr, block.indices, w, x, gamma, beta, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[None, Tensor | None, Tensor | None, Tensor | None, None]:
        """Compute the values per edge again, and sum the gradients by source and by destination."""
        x, gamma, beta, w = ctx.saved_tensors
        block, grad = ctx.block, grad.contiguous()
        grad_x = grad_gamma = grad_beta = None
        if ctx.needs_input_grad[1]:
            pattern = destinations_to_sources(block)
            ordered = w.index_select(0, edge_order(block))
            grad_x = torch.empty_like(x)
            edges = pattern.indptr, pattern.indices, ordered
            with threads_for(block.num_edges * x.shape[1], FEW_NUMBERS):
                _grad_to_sources(*_arrays(*edges, x, gamma, beta, grad, grad_x))
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            grad_gamma, grad_beta = torch.empty_like(gamma), torch.empty_like(beta)
            edges = block.indptr, block.indices, w
            results = grad_gamma, grad_beta
            with threads_for(block.num_edges * x.shape[1], FEW_NUMBERS):
                _grad_to_destinations(*_arrays(*edges, x, gamma, beta, grad, *results))
        return None, grad_x, grad_gamma, grad_beta, None


def _arrays(*values: Tensor) -> list[NDArray[Any]]:
    return [value.detach().contiguous().numpy() for value in values]


# Kernels test "not (value <= 0)" instead of "value > 0", so that NaN passes as through ReLU.


@kernel(parallel=True)
def _sum(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    w: NDArray[Any],
    x: NDArray[Any],
    gamma: NDArray[Any],
    beta: NDArray[Any],
    out: NDArray[Any],
) -> None:
    zero = x.dtype.type(0)
    for v in numba.prange(out.shape[0]):
        out[v] = zero
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            for j in range(out.shape[1]):
                value = gamma[v, j] * x[u, j] + beta[v, j]
                out[v, j] += w[e] * value if not (value <= zero) else zero


@kernel(parallel=True)
def _grad_to_sources(
    indptr: NDArray[np.int64],
    rows: NDArray[np.int64],
    w: NDArray[Any],
    x: NDArray[Any],
    gamma: NDArray[Any],
    beta: NDArray[Any],
    grad: NDArray[Any],
    grad_x: NDArray[Any],
) -> None:
    """Sum over each source's edges, whose destinations are ``rows``, in the order of ``w``."""
    zero = x.dtype.type(0)
    for u in numba.prange(grad_x.shape[0]):
        grad_x[u] = zero
        for e in range(indptr[u], indptr[u + 1]):
            v = rows[e]
            for j in range(grad_x.shape[1]):
                value = gamma[v, j] * x[u, j] + beta[v, j]
                share = w[e] * grad[v, j] * gamma[v, j]
                grad_x[u, j] += share if not (value <= zero) else zero


@kernel(parallel=True)
def _grad_to_destinations(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    w: NDArray[Any],
    x: NDArray[Any],
    gamma: NDArray[Any],
    beta: NDArray[Any],
    grad: NDArray[Any],
    grad_gamma: NDArray[Any],
    grad_beta: NDArray[Any],
) -> None:
    zero = x.dtype.type(0)
    for v in numba.prange(grad_gamma.shape[0]):
        grad_gamma[v] = zero
        grad_beta[v] = zero
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            for j in range(grad_gamma.shape[1]):
                value = gamma[v, j] * x[u, j] + beta[v, j]
                share = w[e] * grad[v, j] if not (value <= zero) else zero
                grad_gamma[v, j] += share * x[u, j]
                grad_beta[v, j] += share
