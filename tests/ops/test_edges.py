"""Values per edge: dense references, finite differences, repeatability."""

from functools import partial

import pytest
import torch

from hopper.errors import RequestError
from hopper.ops import destination_rows, edge_sum, source_rows

from .conftest import NUM_SRC, ROWS, SHAPES, random_leaf


@pytest.mark.parametrize(
    ("rows", "num_src", "tail"),
    [*((*shape, (3,)) for shape in SHAPES), (ROWS, NUM_SRC, ()), (ROWS, NUM_SRC, (2, 4))],
)
def test_gathers_and_sums_equal_loops(make_block, kernels, rows, num_src, tail):
    block = make_block(rows, num_src)
    x, y, m = (
        random_leaf(num_src, *tail),
        random_leaf(block.num_dst, *tail),
        random_leaf(block.num_edges, *tail),
    )
    ends = block.destinations()
    assert torch.equal(source_rows(block, x), x[block.indices])
    assert torch.equal(destination_rows(block, y), y[ends])
    w = random_leaf(block.num_edges, seed=1).detach()
    for weights in (None, w):
        scaled = m if weights is None else m * w.view(-1, *[1] * len(tail))
        expected = torch.zeros_like(y).index_add(0, ends, scaled)
        torch.testing.assert_close(edge_sum(block, m, weights), expected)


@pytest.mark.parametrize(("rows", "num_src"), SHAPES)
def test_gradients_equal_finite_differences(make_block, kernels, rows, num_src):
    block = make_block(rows, num_src)
    # Programs that are interpreted are slow: a projection of the Jacobian, not all its columns.
    check = partial(torch.autograd.gradcheck, fast_mode=kernels == "triton")
    x, y = random_leaf(num_src, 3), random_leaf(block.num_dst, 3)
    messages, w = random_leaf(block.num_edges, 3), random_leaf(block.num_edges, seed=3).detach()
    assert check(lambda x: source_rows(block, x), x)
    assert check(lambda y: destination_rows(block, y), y)
    assert check(lambda m: edge_sum(block, m), messages)
    assert check(lambda m: edge_sum(block, m, w), messages)


def test_results_repeat_bit_for_bit_on_two_threads(make_block, kernels):
    generator = torch.Generator().manual_seed(5)
    # Interpreted programs are slow, and run one after another.
    interpreted = kernels == "triton"
    rows = torch.randint(100, (30 if interpreted else 300, 12), generator=generator).tolist()
    threads = torch.get_num_threads()

    def compute():
        block = make_block(rows, 900)
        x, y = random_leaf(900, 6), random_leaf(block.num_dst, 6)
        w = random_leaf(block.num_edges, seed=3).detach()
        out = edge_sum(block, torch.relu(source_rows(block, x) * destination_rows(block, y)), w)
        return [out, *torch.autograd.grad(out.sin().sum(), (x, y))]

    torch.set_num_threads(2)
    try:
        first = compute()
        for _ in range(1 if interpreted else 3):
            assert all(torch.equal(a, b) for a, b in zip(compute(), first, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_wrong_shapes_are_named(make_block):
    block = make_block(ROWS, NUM_SRC)
    x, y = random_leaf(NUM_SRC, 3), random_leaf(len(ROWS), 3)
    messages, w = random_leaf(10, 3), random_leaf(10, seed=3).detach()
    for weights, message in (
        (w[:2], r"w \[10\] of torch.float64; given \[2\]"),
        (w.float(), "given .10. torch.float32"),
        (w.clone().requires_grad_(), "which requires a gradient"),
    ):
        with pytest.raises(RequestError, match=message):
            edge_sum(block, messages, weights)
    with pytest.raises(RequestError, match=r"messages: .*10 rows"):
        edge_sum(block, x)
    with pytest.raises(RequestError, match=r"x: .*5 rows"):
        destination_rows(block, x)
    with pytest.raises(RequestError, match=r"x: .*7 rows"):
        source_rows(block, y)
