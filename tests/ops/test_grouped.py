"""Products of groups of rows, against a product a group."""

import pytest
import torch

from hopper.errors import RequestError
from hopper.ops import grouped_product, selection
from hopper.ops.groups import Groups

GROUPS = {
    "own rows": Groups((0, 3, 3, 9)),
    "no rows": Groups((0, 0)),
    "one group": Groups((0, 9)),
    "empty groups": Groups((0, 0, 0, 9, 9)),
    "many": Groups((0, 1, 1, 3, 70, 72, 73, 105, 105, 135, 138, 139)),
    "read twice": Groups((0, 4, 8, 8, 8, 10, 12, 14), (0, 0, 4, 4, 4, 4, 4)),
    "long": Groups((0, 1, 2500)),
}


@pytest.mark.parametrize("choice", ["auto", "triton"])
@pytest.mark.parametrize("heads", [(), (1,), (3,)])
@pytest.mark.parametrize("name", GROUPS)
def test_values_and_gradients(name, heads, choice):
    """Products are right group by group, by torch and by Triton."""
    if choice == "triton":
        pytest.importorskip("triton")
    groups, generator = GROUPS[name], torch.Generator().manual_seed(1)
    rows, matrices, biases = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((groups.rows, *heads, 4), (len(groups), *heads, 5, 4), (len(groups), 5))
    )
    operands = (rows, matrices) if heads else (rows, matrices, biases)
    expected = torch.cat(
        [
            (rows[read].unsqueeze(-2) @ matrices[g].mT).squeeze(-2) + (0 if heads else biases[g])
            for g, (read, _) in enumerate(groups)
        ]
    )
    with selection.use_backend(choice):
        products = grouped_product(rows, matrices.mT, groups, *operands[2:])
        torch.testing.assert_close(products, expected, rtol=1e-13, atol=1e-13)
        upstream = torch.randn(products.shape, generator=generator, dtype=torch.float64)
        gradients = torch.autograd.grad(products, operands, upstream)
    assert all(gradient.is_contiguous() for gradient in gradients)
    for gradient, wanted in zip(
        gradients, torch.autograd.grad(expected, operands, upstream), strict=True
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-12)


def test_gradients_are_computed_only_where_they_are_needed():
    rows, matrices = torch.randn(3, 2), torch.randn(1, 2, 2)
    for needs in ((True, False), (False, True)):
        row_leaf = rows.clone().requires_grad_(needs[0])
        matrix_leaf = matrices.clone().requires_grad_(needs[1])
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
def test_shapes_that_do_not_fit_are_refused(rows, matrices, bounds):
    with pytest.raises(RequestError, match="grouped_product: expected rows"):
        grouped_product(rows, matrices, bounds)
