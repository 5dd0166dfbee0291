"""The CPU's kernels where strips, runs of rows and dtypes have their edges."""

import numba
import pytest
import torch

from hopper.graph.block import Edges
from hopper.ops import numba_kernels
from hopper.ops.csr import destinations_to_sources, sources_to_destinations
from hopper.ops.numba_kernels import NumbaKernels
from hopper.ops.torch_kernels import Kernels
from tests.conftest import numba_threads

NUM_SRC, NUM_DST = 60, 40


def make_skewed_block(index_dtype=torch.int64):
    """Most destinations have few edges or none, and one has more than all others together."""
    generator = torch.Generator().manual_seed(3)
    degrees = torch.randint(0, 6, (NUM_DST,), generator=generator)
    degrees[11], degrees[-1] = 400, 0
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    sources = torch.randint(0, NUM_SRC, (int(indptr[-1]),), generator=generator)
    return Edges(NUM_SRC, NUM_DST, indptr.to(index_dtype), sources.to(index_dtype))


def random_tensor(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 9, 12, 15, 16, 31, 47, 64, 71, 127, 200])
@pytest.mark.parametrize("heads", [1, 3])
def test_every_width_of_strips(width, heads):
    block = make_skewed_block()
    x, y = random_tensor(NUM_SRC, heads, width), random_tensor(NUM_DST, heads, width)
    weights = random_tensor(block.num_edges, heads)
    kernels, reference = NumbaKernels(), Kernels()
    close = torch.testing.assert_close
    for pattern, rows in (
        (sources_to_destinations(block), x.flatten(1)),
        (destinations_to_sources(block), y.flatten(1)),
    ):
        for edge_weights in (None, weights):
            sums = kernels.gather_sum(pattern, rows, edge_weights)
            close(sums, reference.gather_sum(pattern, rows, edge_weights))
    close(kernels.edge_dot(block, x, y), reference.edge_dot(block, x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_threads_gives_the_same_bits(dtype, monkeypatch):
    monkeypatch.setattr(numba_kernels, "FEW_NUMBERS", 0)
    block, kernels = make_skewed_block(), NumbaKernels()
    x, y = random_tensor(NUM_SRC, 2, 37, dtype=dtype), random_tensor(NUM_DST, 2, 37, dtype=dtype)
    logits = tuple(random_tensor(size, 2, dtype=dtype) for size in (block.num_edges, NUM_DST))
    pattern = sources_to_destinations(block)

    def results():
        shares = kernels.softmax(block, logits)
        return [
            kernels.gather_sum(pattern, x.flatten(1), None),
            kernels.gather_sum(pattern, x.flatten(1), logits[0]),
            kernels.edge_dot(block, x, y),
            *shares,
            *kernels.softmax_gradient(block, shares, logits),
        ]

    with numba_threads(1):
        on_one_thread = results()
    with numba_threads(min(2, numba.config.NUMBA_NUM_THREADS)):
        on_two_threads = results()
    assert all(map(torch.equal, on_one_thread, on_two_threads))


def test_32_bit_indices():
    x, blocks = random_tensor(NUM_SRC, 21), map(make_skewed_block, (torch.int64, torch.int32))
    sums = [NumbaKernels().gather_sum(sources_to_destinations(block), x, None) for block in blocks]
    assert torch.equal(*sums)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_numbers_are_added_up_in_32_bits(dtype):
    block, kernels = make_skewed_block(), NumbaKernels()
    x = random_tensor(NUM_SRC, 20, dtype=dtype)
    weights = random_tensor(block.num_edges, 1, dtype=dtype)
    pattern = sources_to_destinations(block)
    sums = kernels.gather_sum(pattern, x, weights)
    assert torch.equal(sums, kernels.gather_sum(pattern, x.float(), weights.float()).to(dtype))
    shares, _ = kernels.softmax(block, (weights, None))
    gradient, _ = kernels.softmax_gradient(block, (shares, None), (weights, None))
    assert shares.dtype == gradient.dtype == dtype


def test_strided_rows():
    block, kernels = make_skewed_block(), NumbaKernels()
    pattern = sources_to_destinations(block)
    x, weights = random_tensor(20, NUM_SRC).t(), random_tensor(2, block.num_edges).t()
    for edge_weights in (None, weights):
        contiguous_weights = None if edge_weights is None else edge_weights.contiguous()
        sums = kernels.gather_sum(pattern, x, edge_weights)
        assert torch.equal(sums, kernels.gather_sum(pattern, x.contiguous(), contiguous_weights))


def test_nan_stays_in_its_rows_and_columns():
    block = Edges(3, 3, torch.tensor([0, 2, 3, 3]), torch.tensor([0, 1, 2]))
    x = torch.ones(3, 70)
    x[1, 65] = torch.nan
    sums = NumbaKernels().gather_sum(sources_to_destinations(block), x, None)
    assert torch.equal(sums.isnan().nonzero(), torch.tensor([[0, 65]]))
    logits = torch.tensor([[torch.nan, 0.0], [0.0, 0.0], [1.0, 1.0]])
    shares, _ = NumbaKernels().softmax(block, (logits, None))
    expected = torch.tensor([[torch.nan, 0.5], [torch.nan, 0.5], [1.0, 1.0]])
    torch.testing.assert_close(shares, expected, equal_nan=True)
