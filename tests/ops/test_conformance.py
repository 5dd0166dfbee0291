"""Every set of kernels against a dense float64 reference, and against the others."""

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopper import ops
from hopper.errors import RequestError
from hopper.ops.numba_kernels import NumbaKernels

from .conftest import NUM_SRC, ROWS, SHAPES, random_leaf


def dense_matrix(block, weights=None):
    """Return the block as a matrix [num_dst, num_src] of float64."""
    matrix = torch.zeros(block.num_dst, block.num_src, dtype=torch.float64)
    for row in range(block.num_dst):
        for edge in range(int(block.indptr[row]), int(block.indptr[row + 1])):
            matrix[row, block.indices[edge]] += 1.0 if weights is None else weights[edge]
    return matrix


@pytest.mark.parametrize(
    ("rows", "num_src", "tail"),
    [
        *((*shape, (3,)) for shape in SHAPES),
        *((ROWS, NUM_SRC, tail) for tail in ((1,), (2, 4), ())),
    ],
)
def test_copy_sum_and_mean_equal_dense(make_block, kernels, rows, num_src, tail):
    block = make_block(rows, num_src)
    x = random_leaf(num_src, *tail)
    matrix = dense_matrix(block)
    flat = x.detach().reshape(num_src, -1) if x.numel() else x.detach().new_zeros(num_src, 0)
    expected = (matrix @ flat).view(block.num_dst, *tail)
    torch.testing.assert_close(ops.copy_sum(block, x), expected)
    counts = matrix.sum(1).clamp(min=1).view(-1, *[1] * len(tail))
    torch.testing.assert_close(ops.copy_mean(block, x), expected / counts)


@pytest.mark.parametrize(("rows", "num_src"), SHAPES)
def test_copy_max_equals_dense(make_block, kernels, rows, num_src):
    block = make_block(rows, num_src)
    # Few values, so that several sources have the largest.
    x = random_leaf(num_src, 3).detach().round().requires_grad_()
    out = ops.copy_max(block, x)
    assert out.shape == (block.num_dst, 3)
    upstream = random_leaf(block.num_dst, 3, seed=1).detach()
    expected = torch.zeros(num_src, 3, dtype=torch.float64)
    for row, sources in enumerate(rows):
        for column in range(3 if sources else 0):
            values = x.detach()[sources, column]
            assert out[row, column] == values.max()
            winners = [s for s, value in zip(sources, values, strict=True) if value == values.max()]
            for source in winners:
                expected[source, column] += upstream[row, column] / len(winners)
        if not sources:
            assert not out[row].any()
    (out * upstream).sum().backward()
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize(("rows", "num_src"), SHAPES)
def test_weighted_sum_equals_dense(make_block, kernels, rows, num_src):
    block = make_block(rows, num_src)
    x, w = random_leaf(num_src, 3, 4), random_leaf(block.num_edges, 3)
    heads = [dense_matrix(block, w[:, h]) @ x[:, h] for h in range(3)]
    torch.testing.assert_close(ops.weighted_sum(block, x, w), torch.stack(heads, 1))
    single = ops.weighted_sum(block, x[:, 0], w[:, 0])
    torch.testing.assert_close(single, heads[0])


@pytest.mark.parametrize(("rows", "num_src"), SHAPES)
def test_edge_operations_equal_loops(make_block, kernels, rows, num_src):
    block = make_block(rows, num_src)
    a_src, a_dst = random_leaf(num_src, 2), random_leaf(block.num_dst, 2, seed=1)
    logits = random_leaf(block.num_edges, 2, seed=2)
    self_logits = random_leaf(block.num_dst, 2, seed=3)
    sums = ops.edge_add(block, a_src, a_dst)
    plain = ops.edge_softmax(block, logits)
    weights, self_weights = ops.edge_softmax_with_self(block, logits, self_logits)
    assert sums.shape == plain.shape == weights.shape == (block.num_edges, 2)
    for row in range(block.num_dst):
        edges = slice(int(block.indptr[row]), int(block.indptr[row + 1]))
        torch.testing.assert_close(sums[edges], a_src[block.indices[edges]] + a_dst[row])
        torch.testing.assert_close(plain[edges], logits[edges].softmax(0))
        expected = torch.cat([logits[edges], self_logits[row : row + 1]]).softmax(0)
        torch.testing.assert_close(weights[edges], expected[:-1])
        torch.testing.assert_close(self_weights[row], expected[-1])


@pytest.mark.parametrize(
    ("rows", "num_src", "tail"),
    [*((*shape, (3,)) for shape in SHAPES), (ROWS, NUM_SRC, ()), (ROWS, NUM_SRC, (2, 4))],
)
def test_values_of_edges_equal_loops(make_block, kernels, rows, num_src, tail):
    block = make_block(rows, num_src)
    counts = num_src, block.num_dst, block.num_edges
    x, y, messages = (random_leaf(count, *tail) for count in counts)
    ends = block.destinations()
    assert torch.equal(ops.source_rows(block, x), x[block.indices])
    assert torch.equal(ops.destination_rows(block, y), y[ends])
    w = random_leaf(block.num_edges, seed=1).detach()
    for weights in (None, w):
        scaled = messages if weights is None else messages * w.view(-1, *[1] * len(tail))
        expected = torch.zeros_like(y).index_add(0, ends, scaled)
        torch.testing.assert_close(ops.edge_sum(block, messages, weights), expected)


@pytest.mark.parametrize(("rows", "num_src"), SHAPES)
def test_gradients_equal_finite_differences(make_block, kernels, rows, num_src):
    block = make_block(rows, num_src)
    edges, dst = block.num_edges, block.num_dst
    # Programs that are interpreted are slow: a projection of the Jacobian, not all its columns.
    check = partial(torch.autograd.gradcheck, fast_mode=kernels == "triton")
    x, messages, w = random_leaf(num_src, 3), random_leaf(edges, 3), random_leaf(edges).detach()
    assert check(lambda x: ops.copy_sum(block, x), x)
    assert check(lambda x: ops.source_rows(block, x), x)
    assert check(lambda y: ops.destination_rows(block, y), random_leaf(dst, 3))
    assert check(lambda m: ops.edge_sum(block, m), messages)
    assert check(lambda m: ops.edge_sum(block, m, w), messages)
    assert check(lambda x: ops.copy_mean(block, x), random_leaf(num_src, 2, 2))

    def weigh(x, w):
        return ops.weighted_sum(block, x, w)

    assert check(weigh, (random_leaf(num_src, 3), random_leaf(edges)))
    assert check(weigh, (random_leaf(num_src, 2, 3), random_leaf(edges, 2)))
    assert check(
        lambda a, b: ops.edge_add(block, a, b), (random_leaf(num_src, 2), random_leaf(dst, 2))
    )
    assert check(lambda x: ops.edge_softmax(block, x), random_leaf(edges, 2))
    pair = (random_leaf(edges, 2), random_leaf(dst, 2, seed=1))
    assert check(lambda x, y: ops.edge_softmax_with_self(block, x, y), pair)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_blocks_equal_dense(make_block, kernels, data):
    num_src = data.draw(st.integers(1, 12))
    row = st.lists(st.integers(0, num_src - 1), max_size=9)
    block = make_block(data.draw(st.lists(row, max_size=num_src)), num_src)
    x, w = random_leaf(num_src, 5), random_leaf(block.num_edges)
    out = ops.weighted_sum(block, x, w)
    upstream = torch.randn_like(out)
    grad_x, grad_w = torch.autograd.grad(out, (x, w), upstream)
    matrix = dense_matrix(block, w.detach())
    torch.testing.assert_close(out, matrix @ x)
    torch.testing.assert_close(grad_x, matrix.T @ upstream)
    rows = block.destinations()
    torch.testing.assert_close(grad_w, (x[block.indices] * upstream[rows]).sum(1))


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(1, torch.float32), (5, torch.float64), (16, torch.float64), (70, torch.float32)],
)
def test_rows_are_added_in_edge_order(make_block, kernels, dtype, width):
    # (big + 1) - big is 0 where 1 is lost in rounding; any other order gives 1.
    big = 2.0**80
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]):
        block = make_block([order], 3)
        x = torch.zeros(3, width, dtype=dtype)
        for place, value in enumerate((big, 1.0, -big)):
            x[order[place]] = value
        assert torch.equal(ops.copy_sum(block, x), torch.zeros(1, width, dtype=dtype))
        ones = torch.ones(3, dtype=dtype)
        assert torch.equal(ops.weighted_sum(block, x, ones), torch.zeros(1, width, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_repeat_bit_for_bit_on_two_threads(make_block, kernels, dtype):
    generator = torch.Generator().manual_seed(5)
    # Interpreted programs are slow, and run one after another.
    interpreted = kernels == "triton"
    num_src, degree, num_dst = (36, 6, 15) if interpreted else (900, 12, 400)
    rows = torch.randint(num_src // 9, (num_dst, degree), generator=generator).tolist()
    x = random_leaf(num_src, 4, 6, dtype=dtype)
    a, b = (random_leaf(count, 4, dtype=dtype) for count in (num_src, num_dst))
    weights = random_leaf(num_dst * degree, dtype=dtype, seed=3).detach()

    def compute():
        block = make_block(rows, num_src)
        shares, own = ops.edge_softmax_with_self(block, ops.edge_add(block, a, b), b)
        out = ops.weighted_sum(block, x, shares) + own.unsqueeze(-1) * ops.copy_mean(block, x)
        messages = torch.relu(ops.source_rows(block, a) * ops.destination_rows(block, b))
        of_edges = ops.edge_sum(block, messages, weights)
        loss = out.sin().sum() + of_edges.sin().sum()
        return [out, of_edges, *torch.autograd.grad(loss, (x, a, b))]

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = compute()
        for _ in range(1 if interpreted else 5):
            assert all(torch.equal(p, q) for p, q in zip(first, compute(), strict=True))
        torch.set_num_threads(1)
        on_one_thread = compute()
        # The last sum of the loss aside, nothing depends on the number of threads.
        assert torch.equal(first[0], on_one_thread[0])
    finally:
        torch.set_num_threads(threads)


def test_works_under_deterministic_algorithms(make_block, kernels):
    block = make_block(ROWS, NUM_SRC)
    x, w = random_leaf(NUM_SRC, 2, 3), random_leaf(block.num_edges, 2)
    torch.use_deterministic_algorithms(True)
    try:
        out = ops.weighted_sum(block, x, ops.edge_softmax(block, w)) + ops.copy_sum(block, x)
        out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert x.grad is not None
    assert w.grad is not None


def test_softmax_survives_large_logits(make_block, kernels):
    block = make_block(ROWS, NUM_SRC)
    logits = torch.full((block.num_edges, 1), -3000.0)
    self_logits = torch.full((block.num_dst, 1), -3000.0)
    edges, self_weights = ops.edge_softmax_with_self(block, logits, self_logits)
    torch.testing.assert_close(self_weights.flatten(), 1 / (block.sampled_degree() + 1.0))
    assert torch.isfinite(edges).all()
    assert torch.isfinite(ops.edge_softmax(block, -logits)).all()


def test_edge_dot_in_pieces(make_block, monkeypatch):
    block = make_block(ROWS, NUM_SRC)
    x, w = random_leaf(NUM_SRC, 2, 3), random_leaf(block.num_edges, 2)
    with ops.use_backend("torch"):
        at_once = torch.autograd.grad(ops.weighted_sum(block, x, w).sin().sum(), w)[0]
    monkeypatch.setattr(ops.torch_kernels, "_EDGES_AT_A_TIME", 3)
    with ops.use_backend("torch"):
        in_pieces = torch.autograd.grad(ops.weighted_sum(block, x, w).sin().sum(), w)[0]
    assert torch.equal(at_once, in_pieces)


def test_gradients_nobody_asked_for_are_not_computed(make_block, calls):
    block = make_block(ROWS, NUM_SRC)
    x, w = random_leaf(NUM_SRC, 3), random_leaf(block.num_edges)
    for frozen_x, frozen_w, forward, backward in (
        (x, w.detach(), ["weighted"], ["weighted"]),
        # The gradient to weights is a dot product per edge: no gathering sum at all.
        (x.detach(), w, ["weighted"], []),
        (x, w, ["weighted"], ["weighted"]),
    ):
        calls.clear()
        out = ops.weighted_sum(block, frozen_x, frozen_w)
        assert calls == forward
        calls.clear()
        out.sum().backward()
        assert calls == backward
    assert not ops.weighted_sum(block, x.detach(), w.detach()).requires_grad
    assert not ops.copy_sum(block, x.detach()).requires_grad
    sources, destinations = random_leaf(NUM_SRC, 1), random_leaf(block.num_dst, 1)
    for terms in ((sources.detach(), destinations), (sources, destinations.detach())):
        calls.clear()
        ops.edge_add(block, *terms).sum().backward()
        assert calls == ["plain"]


def test_edge_dot_is_skipped_for_frozen_weights(make_block, monkeypatch):
    block = make_block(ROWS, NUM_SRC)
    monkeypatch.setattr(NumbaKernels, "edge_dot", None)
    weights = random_leaf(block.num_edges).detach()
    ops.weighted_sum(block, random_leaf(NUM_SRC, 3), weights).sum().backward()


def test_a_block_keeps_its_prepared_arrays(make_block, kernels):
    block = make_block(ROWS, NUM_SRC)
    ops.copy_sum(block, random_leaf(NUM_SRC, 3)).sum().backward()
    prepared_before = {key: id(value) for key, value in block.prepared.items()}
    assert prepared_before
    ops.copy_sum(block, random_leaf(NUM_SRC, 8)).sum().backward()
    assert {key: id(value) for key, value in block.prepared.items()} == prepared_before


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 6), max_size=30))
def test_both_transposes_agree(sources):
    keys = torch.tensor(sources, dtype=torch.int64)
    indptr, order = ops.csr._counting_sort(keys.numpy(), 7)
    other_indptr, other_order = ops.csr._stable_sort(keys, 7)
    assert indptr.tolist() == other_indptr.tolist()
    assert order.tolist() == other_order.tolist()
    by_key = sorted(range(len(sources)), key=sources.__getitem__)
    assert order.tolist() == by_key


def test_wrong_shapes_are_named(make_block):
    block = make_block(ROWS, NUM_SRC)
    x, w = random_leaf(NUM_SRC, 2, 3), random_leaf(block.num_edges, 2)
    sources, destinations = random_leaf(NUM_SRC, 3), random_leaf(len(ROWS), 3)
    messages, weights = random_leaf(10, 3), random_leaf(10, seed=3).detach()
    for function, arguments, message in (
        (ops.copy_sum, (random_leaf(6, 3),), r"x: .*7 rows.*\[6, 3\]"),
        (ops.copy_sum, (torch.zeros(NUM_SRC, 2, dtype=torch.int64),), "floating-point"),
        (ops.weighted_sum, (x, w[:, :1]), r"w \[edges, H\]"),
        (ops.weighted_sum, (x, w.float()), "one dtype"),
        (ops.edge_add, (random_leaf(NUM_SRC, 2), destinations), "edge_add"),
        (ops.edge_softmax, (random_leaf(3, 2),), r"logits: .*10 rows"),
        (ops.edge_sum, (messages, weights[:2]), r"w \[10\] of torch.float64; given \[2\]"),
        (ops.edge_sum, (messages, weights.float()), "given .10. torch.float32"),
        (ops.edge_sum, (messages, weights.clone().requires_grad_()), "which requires a gradient"),
        (ops.edge_sum, (sources,), r"messages: .*10 rows"),
        (ops.destination_rows, (sources,), r"x: .*5 rows"),
        (ops.source_rows, (destinations,), r"x: .*7 rows"),
    ):
        with pytest.raises(RequestError, match=message):
            function(block, *arguments)
