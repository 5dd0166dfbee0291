"""Values per edge and modulated sums: dense references, finite differences, repeatability."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopper.errors import RequestError
from hopper.ops import destination_rows, edge_sum, modulated_sum, modulation, source_rows

from .conftest import NUM_SRC, ROWS, SHAPES, random_leaf


def make_inputs(block, width, dtype=torch.float64):
    """x, gamma, beta and constant weights."""
    x = random_leaf(block.num_src, width, dtype=dtype)
    gamma, beta = (random_leaf(block.num_dst, width, dtype=dtype, seed=s) for s in (1, 2))
    return x, gamma, beta, random_leaf(block.num_edges, dtype=dtype, seed=3).detach()


def compute_edge_by_edge(block, x, gamma, beta, w):
    """The definition, edge by edge."""
    out = []
    for v in range(block.num_dst):
        total = torch.zeros_like(gamma[v])
        for e in range(int(block.indptr[v]), int(block.indptr[v + 1])):
            total = total + w[e] * torch.relu(gamma[v] * x[block.indices[e]] + beta[v])
        out.append(total)
    return torch.stack(out) if out else torch.zeros_like(gamma)


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
    x, gamma, beta, w = make_inputs(block, 3)
    messages = random_leaf(block.num_edges, 3)
    assert check(lambda x: source_rows(block, x), x)
    assert check(lambda y: destination_rows(block, y), gamma)
    assert check(lambda m: edge_sum(block, m), messages)
    assert check(lambda m: edge_sum(block, m, w), messages)
    for operation in (modulated_sum, modulation._compose):
        assert check(lambda *values, run=operation: run(block, *values, w), (x, gamma, beta))


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_modulated_sum_fused_composed_and_slow_agree(make_block, kernels, data):
    num_src = data.draw(st.integers(1, 9))
    row = st.lists(st.integers(0, num_src - 1), max_size=6)
    block = make_block(data.draw(st.lists(row, max_size=num_src)), num_src)
    x, gamma, beta, w = make_inputs(block, data.draw(st.integers(1, 9)))
    upstream = random_leaf(*gamma.shape, seed=5).detach()
    results = []
    for operation in (modulated_sum, modulation._compose, compute_edge_by_edge):
        out = operation(block, x, gamma, beta, w)
        grads = (
            torch.autograd.grad(
                out, (x, gamma, beta), upstream, allow_unused=True, materialize_grads=True
            )
            if out.requires_grad
            else []
        )
        results.append([out, *grads])
    for result in results[:2]:
        # Where there are no edges the slow form does not depend on its inputs at all.
        for a, b in zip(result, results[2], strict=False):
            torch.testing.assert_close(a, b)


def test_gradients_nobody_asked_for_are_not_computed(make_block, monkeypatch):
    block = make_block(ROWS, NUM_SRC)
    x, gamma, beta, w = make_inputs(block, 3)
    monkeypatch.setattr(modulation, "_grad_to_sources", None)
    modulated_sum(block, x.detach(), gamma, beta, w).sum().backward()
    assert gamma.grad is not None
    assert beta.grad is not None
    monkeypatch.undo()
    monkeypatch.setattr(modulation, "_grad_to_destinations", None)
    modulated_sum(block, x, gamma.detach(), beta.detach(), w).sum().backward()
    assert x.grad is not None


def test_views_that_are_not_contiguous(make_block):
    block = make_block(ROWS, NUM_SRC)
    _, gamma, beta, w = make_inputs(block, 3)
    x, gamma_beta = random_leaf(3, NUM_SRC).T, torch.cat([gamma, beta], 1)
    out = modulated_sum(block, x, *gamma_beta.chunk(2, 1), w)
    torch.testing.assert_close(out, compute_edge_by_edge(block, x, gamma, beta, w))
    assert torch.autograd.gradcheck(
        lambda x, gamma_beta: modulated_sum(block, x.T, *gamma_beta.chunk(2, 1), w),
        (random_leaf(3, NUM_SRC), gamma_beta.detach().requires_grad_()),
    )


@pytest.mark.parametrize("operation", [modulated_sum, modulation._compose])
def test_nan_reaches_the_result(make_block, operation):
    block = make_block([[0], [1]], 2)
    x, gamma, beta, w = (value.detach() for value in make_inputs(block, 2))
    x[0] = torch.nan
    out = operation(block, x, gamma, beta, w)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [(modulated_sum, torch.float32), (modulation._compose, torch.float64)],
)
def test_results_repeat_bit_for_bit_on_two_threads(make_block, kernels, dtype, operation):
    generator = torch.Generator().manual_seed(5)
    # Interpreted programs are slow, and run one after another.
    interpreted = kernels == "triton"
    rows = torch.randint(100, (30 if interpreted else 300, 12), generator=generator).tolist()
    threads = torch.get_num_threads()

    def compute():
        block = make_block(rows, 900)
        x, gamma, beta, w = make_inputs(block, 6, dtype)
        out = operation(block, x, gamma, beta, w)
        return [out, *torch.autograd.grad(out.sin().sum(), (x, gamma, beta))]

    torch.set_num_threads(2)
    try:
        first = compute()
        for _ in range(1 if interpreted else 3):
            assert all(torch.equal(a, b) for a, b in zip(compute(), first, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_wrong_shapes_are_named(make_block):
    block = make_block(ROWS, NUM_SRC)
    x, gamma, beta, w = make_inputs(block, 3)
    for values, message in (
        ((x[:3], gamma, beta, w), r"x: .*7 rows"),
        ((x, gamma[:2], beta, w), r"gamma: .*5 rows"),
        ((x, gamma, beta[:, :2], w), r"beta \[num_dst, D\].*beta \[5, 2\]"),
        ((x, gamma.float(), beta, w), "of one dtype"),
        ((x, gamma, beta, w[:2]), r"w \[10\] of torch.float64; given \[2\]"),
        ((x, gamma, beta, w.float()), "given .10. torch.float32"),
        ((x, gamma, beta, w.clone().requires_grad_()), "which requires a gradient"),
    ):
        with pytest.raises(RequestError, match=message):
            modulated_sum(block, *values)
    with pytest.raises(RequestError, match=r"messages: .*10 rows"):
        edge_sum(block, x)
    with pytest.raises(RequestError, match=r"edge_sum: .*given \[2\]"):
        edge_sum(block, random_leaf(10, 3), w[:2])
    with pytest.raises(RequestError, match=r"x: .*5 rows"):
        destination_rows(block, x)
    with pytest.raises(RequestError, match=r"x: .*7 rows"):
        source_rows(block, gamma)
