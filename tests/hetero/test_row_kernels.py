"""Kernels of learnable rows against torch's operations, with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch

from hopper.hetero.row_kernels import (
    add_rows,
    gather_rows,
    mark,
    merge_places,
    put_rows,
    zero_rows,
)
from hopper.hetero.sparse_optimizers import OPTIMIZERS, Factors, SparseOptimizer

# More rows than one thread handles alone.
ROWS, READ, DIM = 9000, 6000, 5
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = numba.get_num_threads()
    if request.param > numba.config.NUMBA_NUM_THREADS:
        pytest.skip("too few processors")
    numba.set_num_threads(request.param)
    yield request.param
    numba.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def some_places() -> np.ndarray:
    return np.random.default_rng(3).permutation(ROWS)[:READ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_read_and_gradients_added_as_by_torch(dtype: torch.dtype, threads: int) -> None:
    records, places = random(ROWS, 3, DIM, dtype=dtype), some_places()
    at, rows = torch.from_numpy(places), torch.empty(READ, DIM, dtype=dtype)
    gather_rows(records, places, rows)
    assert torch.equal(rows, records[at, 0])
    sums = random(ROWS, DIM, dtype=dtype, seed=1)
    expected = sums.index_add(0, at, rows)
    add_rows(rows, places, sums)
    assert torch.equal(sums, expected)
    # Gradients may come as a part of wider ones, or as one row for all.
    wide = random(READ, 2 * DIM, dtype=dtype, seed=2)
    put_rows(wide[:, DIM:], places, sums)
    assert torch.equal(sums, expected.index_copy(0, at, wide[:, DIM:]))
    add_rows(torch.ones(1, 1, dtype=dtype).expand(READ, DIM), places, sums)
    assert torch.equal(sums[at], wide[:, DIM:] + 1)
    zero_rows(places, sums)
    assert torch.equal(sums, expected.index_fill(0, at, 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", OPTIMIZERS.values())
@pytest.mark.parametrize("factors", [Factors(), Factors(rate=0.7, gradient=0.25, l2=0.01)])
def test_updates_in_place_are_torchs(
    kind: type[SparseOptimizer], factors: Factors, dtype: torch.dtype, threads: int
) -> None:
    """Some records of a table, and copies of them that torch's operations update."""
    table = random(ROWS, 1 + kind.parts, DIM, dtype=dtype)
    table[:, 1:] = 0
    before, places = table.clone(), some_places()
    copies, ours, theirs = table[places], kind(0.1), kind(0.1)
    for step in range(3):
        gradient = random(READ, DIM, dtype=dtype, seed=step)
        ours.step(table, gradient, factors, places)
        given = gradient * factors.gradient + factors.l2 * copies[:, 0]
        theirs._update_by_torch(copies, given, factors.rate)
    # torch's square roots may be off by the last bit.
    limit = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(table[places], copies, rtol=limit, atol=limit)
    others = np.setdiff1d(np.arange(ROWS), places)
    assert torch.equal(table[others], before[others])
    # The same of all records in order, to the last bit.
    again, third = before[places], kind(0.1)
    for step in range(3):
        third.step(again, random(READ, DIM, dtype=dtype, seed=step), factors)
    assert torch.equal(again, table[places])


@pytest.mark.parametrize("sizes", [[], [0], [5], [0, 7, 0], [4, 6], [30, 0, 20, 25], [0, 0]])
def test_places_that_several_ranks_read(sizes: list[int]) -> None:
    generator = np.random.default_rng(len(sizes))
    groups = [np.sort(generator.permutation(40)[:size]) for size in sizes]
    places, within = merge_places(groups)
    assert np.array_equal(places, np.unique(np.concatenate(groups or [np.empty(0, np.int64)])))
    assert len(within) == len(groups)
    for group, at in zip(groups, within, strict=True):
        assert np.array_equal(places[at], group)


def test_marks() -> None:
    flags = torch.zeros(6, dtype=torch.bool)
    mark(flags, np.array([4, 1]))
    mark(flags, np.empty(0, np.int64))
    assert flags.tolist() == [False, True, False, False, True, False]
