"""Products of groups of rows, against a product a group."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from hopper.errors import RequestError
from hopper.ops import grouped, grouped_product

MANY = (0, 1, 1, 3, 70, 72, 73, 105, 105, 135, 138, 139)
"""empty groups and others of 1, 2, 3, 30, 32 and 67 rows"""


@pytest.mark.parametrize("heads", [(), (3,)])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("bounds", [(0, 3, 3, 9), (0, 0), (0, 9), (0, 0, 0, 9, 9), (0, 4, 9), MANY])
def test_values_and_gradients(
    bounds: tuple[int, ...],
    batched: bool,
    heads: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products are right group by group, and in the padded batches that a GPU gets."""
    if batched and bounds[-1]:
        monkeypatch.setattr(grouped._Batches, "of", grouped._Batches)
    generator = torch.Generator().manual_seed(1)
    rows, matrices = (
        torch.randn(size, *heads, *shape, generator=generator, dtype=torch.float64).requires_grad_()
        for size, shape in ((bounds[-1], (4,)), (len(bounds) - 1, (4, 5)))
    )
    expected = torch.cat(
        [
            (rows[a:b].unsqueeze(-2) @ matrices[g]).squeeze(-2)
            for g, (a, b) in enumerate(pairwise(bounds))
        ]
        or [rows.new_empty(0, *heads, 5)]
    )
    products = grouped_product(rows, matrices, bounds)
    torch.testing.assert_close(products, expected, rtol=1e-13, atol=1e-13)
    upstream = torch.randn(products.shape, generator=generator, dtype=torch.float64)
    expected_gradients = torch.autograd.grad(expected, (rows, matrices), upstream)
    gradients = torch.autograd.grad(products, (rows, matrices), upstream)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


def test_batches_are_used_where_they_pay() -> None:
    """Batches are used on a device, where they save launches, and are at most half padding."""
    cpu, meta = torch.device("cpu"), torch.device("meta")
    equal_groups = tuple(range(0, 100, 5))
    assert grouped._Batches.of(equal_groups, cpu) is None
    for bounds in ((0,), (0, 0), (0, 4, 9), (0, 1, 3, 7, 15, 31, 63, 127)):
        assert grouped._Batches.of(bounds, meta) is None
    for bounds in (equal_groups, (*MANY, *range(140, 160)), (0, 90, *range(91, 101))):
        batches = grouped._Batches.of(bounds, meta)
        assert batches is not None
        assert bounds[-1] <= batches._rows < 2 * bounds[-1]


def test_gradients_are_computed_only_where_they_are_needed() -> None:
    rows, matrices = torch.randn(3, 2), torch.randn(1, 2, 2)
    for needs in ((True, False), (False, True)):
        row_leaf, matrix_leaf = (
            rows.clone().requires_grad_(needs[0]),
            matrices.clone().requires_grad_(needs[1]),
        )
        grouped_product(row_leaf, matrix_leaf, (0, 3)).sum().backward()
        assert (row_leaf.grad is not None, matrix_leaf.grad is not None) == needs


@pytest.mark.parametrize(
    ("rows", "matrices", "bounds"),
    [
        (torch.zeros(3, 2), torch.zeros(1, 3, 2), (0, 3)),
        (torch.zeros(3, 2), torch.zeros(1, 2, 2), (0, 2)),
        (torch.zeros(3, 2), torch.zeros(2, 2, 2), (0, 3)),
        (torch.zeros(3, 2), torch.zeros(1, 2, 2, dtype=torch.float64), (0, 3)),
        (torch.zeros(3), torch.zeros(1, 2, 2), (0, 3)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    rows: torch.Tensor, matrices: torch.Tensor, bounds: tuple[int, ...]
) -> None:
    with pytest.raises(RequestError, match="grouped_product: expected rows"):
        grouped_product(rows, matrices, bounds)
