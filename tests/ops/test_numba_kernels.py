"""The CPU's kernels where strips, runs of rows and dtypes have their edges."""

from __future__ import annotations

import numba
import pytest
import torch

from hopper.graph.block import Edges
from hopper.ops import numba_kernels
from hopper.ops.csr import destinations_to_sources, sources_to_destinations
from hopper.ops.numba_kernels import NumbaKernels
from hopper.ops.torch_kernels import SegmentKernels

NUM_SRC, NUM_DST = 60, 40


def skewed_block(index_dtype=torch.int64):
    """Most destinations have few edges or none, and one has more than all others together."""
    generator = torch.Generator().manual_seed(3)
    degrees = torch.randint(0, 6, (NUM_DST,), generator=generator)
    degrees[11], degrees[-1] = 400, 0
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    sources = torch.randint(0, NUM_SRC, (int(indptr[-1]),), generator=generator)
    return Edges(NUM_SRC, NUM_DST, indptr.to(index_dtype), sources.to(index_dtype))


def numbers(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 9, 12, 15, 16, 31, 47, 64, 71, 127, 200])
@pytest.mark.parametrize("heads", [1, 3])
def test_every_width_of_strips(width, heads):
    block = skewed_block()
    x, y = numbers(NUM_SRC, heads, width), numbers(NUM_DST, heads, width)
    weights = numbers(block.num_edges, heads)
    ours, reference = NumbaKernels(), SegmentKernels()
    close = torch.testing.assert_close
    for pattern, rows in (
        (sources_to_destinations(block), x.flatten(1)),
        (destinations_to_sources(block), y.flatten(1)),
    ):
        for given in (None, weights):
            sums = ours.gather_sum(pattern, rows, given)
            close(sums, reference.gather_sum(pattern, rows, given))
    close(ours.edge_dot(block, x, y), reference.edge_dot(block, x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_threads_gives_the_same_bits(dtype, monkeypatch):
    monkeypatch.setattr(numba_kernels, "FEW_NUMBERS", 0)
    block, kernels = skewed_block(), NumbaKernels()
    x, y = numbers(NUM_SRC, 2, 37, dtype=dtype), numbers(NUM_DST, 2, 37, dtype=dtype)
    logits, own = numbers(block.num_edges, 2, dtype=dtype), numbers(NUM_DST, 2, dtype=dtype)
    pattern = sources_to_destinations(block)

    def results():
        shares = kernels.softmax(block, logits, own)
        return [
            kernels.gather_sum(pattern, x.flatten(1), None),
            kernels.gather_sum(pattern, x.flatten(1), logits),
            kernels.edge_dot(block, x, y),
            *shares,
            *kernels.softmax_gradient(block, *shares, logits, own),
        ]

    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        alone = results()
    finally:
        numba.set_num_threads(threads)
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    try:
        together = results()
    finally:
        numba.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_32_bit_indices():
    wide, narrow = skewed_block(), skewed_block(torch.int32)
    x = numbers(NUM_SRC, 21)
    sums = [
        NumbaKernels().gather_sum(sources_to_destinations(block), x, None)
        for block in (wide, narrow)
    ]
    assert torch.equal(*sums)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_the_bits_are_added_up_in_full(dtype):
    block, kernels = skewed_block(), NumbaKernels()
    x, weights = numbers(NUM_SRC, 20, dtype=dtype), numbers(block.num_edges, 1, dtype=dtype)
    pattern = sources_to_destinations(block)
    sums = kernels.gather_sum(pattern, x, weights)
    assert torch.equal(sums, kernels.gather_sum(pattern, x.float(), weights.float()).to(dtype))
    shares, _ = kernels.softmax(block, weights, None)
    gradient, _ = kernels.softmax_gradient(block, shares, None, weights, None)
    assert shares.dtype == gradient.dtype == dtype


def test_strided_rows():
    block, kernels = skewed_block(), NumbaKernels()
    pattern = sources_to_destinations(block)
    x, weights = numbers(20, NUM_SRC).t(), numbers(2, block.num_edges).t()
    for given in (None, weights):
        copied = None if given is None else given.contiguous()
        sums = kernels.gather_sum(pattern, x, given)
        assert torch.equal(sums, kernels.gather_sum(pattern, x.contiguous(), copied))


def test_what_is_no_number_stays_in_its_rows_and_columns():
    block = Edges(3, 3, torch.tensor([0, 2, 3, 3]), torch.tensor([0, 1, 2]))
    x = torch.ones(3, 70)
    x[1, 65] = torch.nan
    sums = NumbaKernels().gather_sum(sources_to_destinations(block), x, None)
    assert torch.equal(sums.isnan().nonzero(), torch.tensor([[0, 65]]))
    logits = torch.tensor([[torch.nan, 0.0], [0.0, 0.0], [1.0, 1.0]])
    shares, _ = NumbaKernels().softmax(block, logits, None)
    expected = torch.tensor([[torch.nan, 0.5], [torch.nan, 0.5], [1.0, 1.0]])
    torch.testing.assert_close(shares, expected, equal_nan=True)
