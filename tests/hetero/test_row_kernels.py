"""Kernels of learnable rows against torch's operations, with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch

from hopper.hetero.learnable.fetched import merge_places
from hopper.hetero.learnable.leaf import add_rows
from hopper.hetero.sparse_optimizers import OPTIMIZERS, Factors, SparseOptimizer

# More rows than one thread handles alone.
ROWS, READ, DIM = 9000, 6000, 5
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    threads_before = numba.get_num_threads()
    if request.param > numba.config.NUMBA_NUM_THREADS:
        pytest.skip("too few processors")
    numba.set_num_threads(request.param)
    yield request.param
    numba.set_num_threads(threads_before)


def random_tensor(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def random_places() -> np.ndarray:
    return np.random.default_rng(3).permutation(ROWS)[:READ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_adding_gradients_equals_torch(dtype: torch.dtype, threads: int) -> None:
    rows, places = random_tensor(READ, DIM, dtype=dtype), random_places()
    index = torch.from_numpy(places)
    sums = random_tensor(ROWS, DIM, dtype=dtype, seed=1)
    expected = sums.index_add(0, index, rows)
    add_rows(rows, places, sums)
    assert torch.equal(sums, expected)
    # Gradients may come as one row for all.
    add_rows(torch.ones(1, 1, dtype=dtype).expand(READ, DIM), places, sums)
    assert torch.equal(sums, expected.index_add(0, index, torch.ones_like(rows)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", OPTIMIZERS.values())
@pytest.mark.parametrize("factors", [Factors(), Factors(rate=0.7, gradient=0.25, l2=0.01)])
def test_updates_in_place_equal_torch_s(
    kind: type[SparseOptimizer], factors: Factors, dtype: torch.dtype, threads: int
) -> None:
    """Update some records of a table by the kernel, and copies of them by torch's operations."""
    table = random_tensor(ROWS, 1 + kind.parts, DIM, dtype=dtype)
    table[:, 1:] = 0
    table_before, places = table.clone(), random_places()
    copies, kernel_optimizer, torch_optimizer = table[places], kind(0.1), kind(0.1)
    for step in range(3):
        gradient = random_tensor(READ, DIM, dtype=dtype, seed=step)
        kernel_optimizer.step(table, gradient, factors, places)
        scaled_gradient = gradient * factors.gradient + factors.l2 * copies[:, 0]
        size = torch_optimizer._begin(0.1 * factors.rate)
        torch_optimizer._update_by_torch(copies, scaled_gradient, size)
    # torch's square roots may be off by the last bit.
    limit = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(table[places], copies, rtol=limit, atol=limit)
    other_places = np.setdiff1d(np.arange(ROWS), places)
    assert torch.equal(table[other_places], table_before[other_places])
    # The same of all records in order, to the last bit.
    records, in_order_optimizer = table_before[places], kind(0.1)
    for step in range(3):
        in_order_optimizer.step(records, random_tensor(READ, DIM, dtype=dtype, seed=step), factors)
    assert torch.equal(records, table[places])


@pytest.mark.parametrize("sizes", [[0], [5], [0, 7, 0], [4, 6], [30, 0, 20, 25], [0, 0]])
def test_places_of_several_ranks_are_merged(sizes: list[int]) -> None:
    generator = np.random.default_rng(len(sizes))
    groups = [np.sort(generator.permutation(40)[:size]) for size in sizes]
    places, within = merge_places(groups)
    assert np.array_equal(places, np.unique(np.concatenate(groups)))
    assert len(within) == len(groups)
    for group, places_of_group in zip(groups, within, strict=True):
        assert np.array_equal(places[places_of_group], group)
