"""Rows that stay where they are stored, in any form, until they are multiplied."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cache_server.feature_codec import CODECS
from hopper.graph.block import Nodes
from hopper.ops import RowPart, StoredRows, drop_rows, row_reader, to_floats

COUNT, DIM = 900, 40
Rows = StoredRows | Tensor


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch) -> None:
    """Make blocks of a few rows, so that there are many."""
    monkeypatch.setattr(row_reader, "_BLOCK_BYTES", 37 * DIM * 4)


def make_rows(dtype: torch.dtype = torch.float64) -> tuple[StoredRows, Tensor]:
    """Make stored rows of two tables, and the same rows gathered in one tensor."""
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(1500, DIM, generator=generator).to(dtype)
    fetched = torch.randn(200, DIM, generator=generator).to(dtype)
    order = torch.randperm(COUNT, generator=generator)
    table_places, fetched_places = order[200:].sort().values, order[:200].sort().values
    rows = torch.randperm(1500, generator=generator)[:700]
    gathered = torch.empty(COUNT, DIM, dtype=dtype)
    gathered[table_places], gathered[fetched_places] = table[rows], fetched
    return StoredRows.of(
        [RowPart(table, rows, table_places), RowPart(fetched, None, fetched_places)], COUNT
    ), gathered


def random_weights(*widths: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    draws = torch.Generator().manual_seed(5)
    return [
        torch.randn(width, DIM, generator=draws, dtype=dtype).requires_grad_() for width in widths
    ]


def check(
    compute: Callable[[Rows], Iterable[Tensor]],
    dtype: torch.dtype = torch.float64,
    **tolerance: float,
) -> None:
    """Check that the same is computed of stored rows as of gathered ones."""
    stored, gathered = make_rows(dtype)
    for actual, expected in zip(compute(stored), compute(gathered), strict=True):
        assert type(actual) is Tensor
        torch.testing.assert_close(actual, expected, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_products_and_gradients_are_those_of_gathered_rows(dtype):
    neighbor, self_weight = random_weights(6, 3)
    bias = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def compute(rows: Rows) -> tuple[Tensor, ...]:
        rows = rows.to(torch.float64)
        if isinstance(rows, StoredRows):
            rows.expect([self_weight], 300)
        first = rows[:300]
        z = functional.linear(rows, neighbor)
        self_rows = functional.linear(first, self_weight, bias)
        neighbor_rows = first @ neighbor.t()
        loss = z.sin().sum() + self_rows.cos().sum() + neighbor_rows.square().sum()
        gradients = torch.autograd.grad(loss, [neighbor, self_weight, bias])
        return z, self_rows, neighbor_rows, *gradients

    check(compute, dtype, rtol=1e-10, atol=1e-10)


def test_a_product_of_all_rows_gives_those_of_the_first_rows():
    (weight,) = random_weights(4)

    def compute(rows: Rows) -> tuple[Tensor, ...]:
        z, first_rows = functional.linear(rows, weight), functional.linear(rows[:50], weight)
        assert isinstance(rows, Tensor) or first_rows.data_ptr() == z.data_ptr()
        return torch.autograd.grad(z.sin().sum() + first_rows.cos().sum(), [weight])

    check(compute)


def test_a_product_does_not_outlive_its_weights():
    stored, gathered = make_rows()
    (weight,) = random_weights(4)
    product_before = functional.linear(stored, weight)
    with torch.no_grad():
        weight += 1
        product_after = functional.linear(stored[:50], weight)
    torch.testing.assert_close(product_after, gathered[:50] @ weight.detach().t())
    assert not torch.equal(product_after, product_before[:50])
    # Nor is one without a gradient, where one is wanted.
    assert functional.linear(stored[:50], weight).requires_grad


def test_weights_that_are_expected_are_multiplied_in_the_same_pass(monkeypatch):
    stored, gathered = make_rows()
    neighbor, self_weight = random_weights(4, 2)
    stored.expect([self_weight], 120)
    z = functional.linear(stored, neighbor)
    monkeypatch.setattr(row_reader.RowReader, "blocks", None)
    self_rows = functional.linear(stored[:120], self_weight)
    torch.testing.assert_close(self_rows, gathered[:120] @ self_weight.t())
    torch.testing.assert_close(z, gathered @ neighbor.t())


def test_dropout_is_that_of_gathered_rows():
    nodes = Nodes("paper", torch.arange(COUNT), torch.ones(COUNT, dtype=torch.int64), 77)
    (weight,) = random_weights(4)

    def compute(rows: Rows) -> tuple[Tensor, ...]:
        z = functional.linear(drop_rows(nodes, rows, 0.4, 0), weight)
        return z, *torch.autograd.grad(z.sin().sum(), [weight])

    check(compute)
    check(lambda rows: [drop_rows(nodes, rows, 0.4, 0).clone()], rtol=0, atol=0)
    # Dropout can follow dropout.
    check(lambda rows: [drop_rows(nodes, drop_rows(nodes, rows, 0.2, 7), 0.5, 0).clone()])


def test_products_in_halves():
    (weight,) = random_weights(4, dtype=torch.float32)

    def multiply(rows: Rows) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.linear(rows, weight)

    def compute_gradient(rows: Rows) -> tuple[Tensor, ...]:
        return torch.autograd.grad(multiply(rows).float().square().sum(), [weight])

    assert multiply(make_rows(torch.float32)[0]).dtype == torch.bfloat16
    check(lambda rows: [multiply(rows)], torch.float32)
    check(compute_gradient, torch.float32, rtol=2e-2, atol=2.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: x.clone(),
        lambda x: torch.cat((x, x), 1),
        lambda x: x.index_select(0, torch.tensor([5, 1, 5, 899])),
        lambda x: x[3],
        lambda x: x[10:20],
        lambda x: x[::3],
        lambda x: x[:0].sum(),
        lambda x: x[:100][:7] + 1,
        lambda x: x.view(COUNT, 4, -1).sum(1),
        lambda x: torch.relu(x),
        lambda x: x.float() + 1,
        lambda x: x @ torch.ones(DIM, dtype=x.dtype),
        lambda x: torch.einsum("nd,od->no", x, torch.ones(2, DIM, dtype=x.dtype)),
        lambda x: torch.stack([x, x]).mean(0),
    ],
)
def test_every_other_function_sees_an_ordinary_tensor(function):
    check(lambda rows: [function(rows)])


def test_shapes_and_dtypes_are_known_without_reading_rows(monkeypatch):
    stored, gathered = make_rows()
    monkeypatch.setattr(row_reader.RowReader, "blocks", None)
    assert stored.shape == gathered.shape
    assert (len(stored), stored.dim(), stored.numel()) == (COUNT, 2, COUNT * DIM)
    for name in ("dtype", "device", "ndim", "nbytes", "requires_grad"):
        assert getattr(stored, name) == getattr(gathered, name)
    zeros = stored.new_zeros(3, 2)
    assert type(zeros) is Tensor
    assert torch.equal(zeros, gathered.new_zeros(3, 2))
    assert stored.to(torch.float32).dtype == torch.float32
    assert stored[:12].shape == (12, DIM)


def test_rows_are_picked_in_any_order():
    stored, gathered = make_rows()
    places = torch.randperm(COUNT)[:333]
    (weight,) = random_weights(3)
    picked = stored.pick(places)
    torch.testing.assert_close(functional.linear(picked, weight), gathered[places] @ weight.t())
    assert torch.equal(picked.to_tensor(), gathered[places])


def test_rows_of_one_table_are_picked_in_any_order():
    table = torch.randn(50, DIM, dtype=torch.float64)
    places = torch.tensor([7, 0, 3])
    all_rows = StoredRows.of([RowPart(table)], 50)
    assert torch.equal(all_rows.pick(places).to_tensor(), table[places])
    rows = torch.tensor([9, 8, 7, 6, 5, 4, 3, 2])
    some_rows = StoredRows.of([RowPart(table, rows)], 8)
    assert torch.equal(some_rows.pick(places).to_tensor(), table[rows[places]])


def test_a_supplied_product_is_taken_without_reading_rows(monkeypatch):
    stored, gathered = make_rows()
    _, weight = random_weights(4, 2)
    product = gathered @ weight.t()
    stored.supply(weight, lambda: product)
    monkeypatch.setattr(row_reader.RowReader, "blocks", None)
    assert torch.equal(functional.linear(stored[:100], weight), product[:100])


def test_no_rows():
    table = torch.randn(4, DIM, dtype=torch.float64)
    no_ids = torch.zeros(0, dtype=torch.int64)
    rows = StoredRows.of([RowPart(table, no_ids)], 0)
    (weight,) = random_weights(3)
    out = functional.linear(rows, weight)
    assert out.shape == (0, 3)
    assert torch.equal(*torch.autograd.grad(out.sum(), [weight]), torch.zeros_like(weight))


def test_a_product_that_was_changed_in_place_is_not_used_again():
    (weight,) = random_weights(6)

    def compute(rows: Rows) -> tuple[Tensor, Tensor]:
        first = functional.leaky_relu_(functional.linear(rows, weight))
        return first, functional.linear(rows[:300], weight)

    check(compute)


def test_a_product_is_not_used_for_the_transposed_matrix():
    (weight,) = random_weights(DIM)
    check(lambda rows: [rows @ weight, functional.linear(rows, weight), rows @ weight])


def test_arguments_by_keyword_work_too():
    (weight,) = random_weights(6)
    out = torch.empty(COUNT, 6, dtype=torch.float64)
    check(lambda rows: [functional.linear(input=rows, weight=weight)])
    check(lambda rows: [torch.mm(rows, weight.detach().t(), out=out).clone()])


# Stored forms: what they hold, and how numpy and torch make floats of them

# [60, 7]: rows of very different size, one of them zero.
ROWS = np.random.default_rng(0).normal(size=(60, 7)) * np.logspace(-12, 4, 60)[:, None]
ROWS[3] = 0


@pytest.mark.parametrize("name", CODECS)
def test_numpy_and_torch_read_the_same_numbers(name):
    form = CODECS[name]
    stored = form.encode(ROWS.astype(np.float32))
    assert (stored.dtype, stored.shape) == (form.dtype, (60, form.columns(7)))
    assert stored[0].nbytes == form.row_bytes(7)
    for stored_rows in (stored, stored[:0], stored[7:8], stored[::2]):
        for dtype in (torch.float32, torch.float64):
            floats = to_floats(torch.from_numpy(stored_rows.copy()), dtype)
            assert floats.dtype == dtype
            assert np.array_equal(floats.numpy(), form.decode(stored_rows))
    # A product over blocks, in any order, equals that in float64.
    picked, weight = torch.tensor([4, 59, 4, 0]), torch.rand(3, 7, dtype=torch.float64)
    part = RowPart(torch.from_numpy(stored), picked, torch.tensor([0, 2, 3, 1]))
    expected = torch.from_numpy(form.decode(stored)).double()[[4, 0, 59, 4]]
    out = torch.nn.functional.linear(StoredRows.of([part], 4).to(torch.float64), weight)
    assert torch.allclose(out, expected @ weight.t(), rtol=1e-14)


def test_rounding():
    bits = np.random.default_rng(1).integers(0, 0x7F00_0000, (500, 4), dtype=np.uint32)
    bits[::2] = bits[::2] & 0xFFFF_0000 | 0x8000  # in the middle of two
    rows = bits.view(np.float32)
    expected = torch.from_numpy(rows).to(torch.bfloat16).float().numpy()
    assert np.array_equal(CODECS["bfloat16"].decode(CODECS["bfloat16"].encode(rows)), expected)
    # A step of int8 is a 127th of the row's largest number, exact but for float32's rounding.
    rows = ROWS.astype(np.float32)
    decoded = CODECS["int8"].decode(CODECS["int8"].encode(rows))
    largest = np.abs(rows).max(1, keepdims=True)
    assert (np.abs(decoded - rows) <= largest * (0.5 / 127 + 1e-6)).all()
    assert np.allclose(np.abs(decoded).max(1, keepdims=True), largest, rtol=1e-6, atol=0)
    assert np.abs(decoded - rows).max() > 0
    # Numbers that a form has are stored exactly.
    rows = np.random.default_rng(2).integers(-64, 64, (30, 5)).astype(np.float32) / 8
    for form in (CODECS["float16"], CODECS["bfloat16"]):
        assert np.array_equal(form.decode(form.encode(rows)), rows)
