"""Rows that stay where they are stored until they are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hopper.graph.block import Nodes
from hopper.ops import RowPart, StoredRows, drop_rows, row_reader

COUNT, DIM = 900, 40
Rows = StoredRows | Tensor


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few rows each, so that there are many."""
    monkeypatch.setattr(row_reader, "_BLOCK_BYTES", 37 * DIM * 4)


def both(dtype: torch.dtype = torch.float64) -> tuple[StoredRows, Tensor]:
    """Rows of two tables, and the same rows in one."""
    draws = torch.Generator().manual_seed(3)
    table = torch.randn(1500, DIM, generator=draws).to(dtype)
    fetched = torch.randn(200, DIM, generator=draws).to(dtype)
    order = torch.randperm(COUNT, generator=draws)
    here, away = order[200:].sort().values, order[:200].sort().values
    rows = torch.randperm(1500, generator=draws)[:700]
    whole = torch.empty(COUNT, DIM, dtype=dtype)
    whole[here], whole[away] = table[rows], fetched
    return StoredRows.of([RowPart(table, rows, here), RowPart(fetched, None, away)], COUNT), whole


def weights(*widths: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    draws = torch.Generator().manual_seed(5)
    return [
        torch.randn(width, DIM, generator=draws, dtype=dtype).requires_grad_() for width in widths
    ]


def gradients(loss: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, of)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_products_and_gradients_are_those_of_gathered_rows(dtype: torch.dtype) -> None:
    neighbor, own, bias = *weights(6, 3), torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def compute(rows: Rows) -> tuple[Tensor, ...]:
        rows = rows.to(torch.float64)
        if isinstance(rows, StoredRows):
            rows.expect([own], 300)
        first = rows[:300]
        z = functional.linear(rows, neighbor)
        mine = functional.linear(first, own, bias)
        again = first @ neighbor.t()
        loss = z.sin().sum() + mine.cos().sum() + again.square().sum()
        return z, mine, again, *gradients(loss, [neighbor, own, bias])

    stored, whole = both(dtype)
    for found, expected in zip(compute(stored), compute(whole), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_product_of_all_rows_serves_the_first_ones() -> None:
    stored, whole = both()
    (weight,) = weights(4)
    z = functional.linear(stored, weight)
    own = functional.linear(stored[:50], weight)
    assert own.data_ptr() == z.data_ptr()
    (found,) = gradients(z.sin().sum() + own.cos().sum(), [weight])
    (expected,) = gradients(
        (whole @ weight.t()).sin().sum() + (whole[:50] @ weight.t()).cos().sum(), [weight]
    )
    torch.testing.assert_close(found, expected)


def test_a_product_does_not_outlive_its_weights() -> None:
    stored, whole = both()
    (weight,) = weights(4)
    before = functional.linear(stored, weight)
    with torch.no_grad():
        weight += 1
        after = functional.linear(stored[:50], weight)
    torch.testing.assert_close(after, whole[:50] @ weight.detach().t())
    assert not torch.equal(after, before[:50])


def test_weights_that_are_expected_are_multiplied_in_the_same_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, whole = both()
    neighbor, own = weights(4, 2)
    stored.expect([own], 120)
    z = functional.linear(stored, neighbor)
    monkeypatch.setattr(row_reader.RowReader, "blocks", None)
    found = functional.linear(stored[:120], own)
    torch.testing.assert_close(found, whole[:120] @ own.t())
    torch.testing.assert_close(z, whole @ neighbor.t())


def test_dropout_is_that_of_gathered_rows() -> None:
    stored, whole = both()
    nodes = Nodes("paper", torch.arange(COUNT), torch.ones(COUNT, dtype=torch.int64), 77)
    (weight,) = weights(4)

    def compute(rows: Rows) -> tuple[Tensor, Tensor]:
        z = functional.linear(drop_rows(nodes, rows, 0.4, 0), weight)
        return z, *gradients(z.sin().sum(), [weight])

    for found, expected in zip(compute(stored), compute(whole), strict=True):
        torch.testing.assert_close(found, expected)
    assert torch.equal(
        drop_rows(nodes, stored, 0.4, 0).clone(), drop_rows(nodes, whole, 0.4, 0).clone()
    )


def test_products_in_halves() -> None:
    stored, whole = both(torch.float32)
    (weight,) = weights(4, dtype=torch.float32)

    def compute(rows: Rows) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            z = functional.linear(rows, weight)
        return z, *gradients(z.float().square().sum(), [weight])

    (z, gradient), (expected, expected_gradient) = compute(stored), compute(whole)
    assert z.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=2e-2, atol=2.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: x.clone(),
        lambda x: torch.cat((x, x), 1),
        lambda x: x.index_select(0, torch.tensor([5, 1, 5, 899])),
        lambda x: x[3],
        lambda x: x[10:20],
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
def test_every_other_function_sees_an_ordinary_tensor(function: Callable[[Any], Tensor]) -> None:
    stored, whole = both()
    found = function(stored)
    assert type(found) is Tensor
    torch.testing.assert_close(found, function(whole))


def test_what_is_known_is_told_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, whole = both()
    monkeypatch.setattr(row_reader.RowReader, "blocks", None)
    assert stored.shape == whole.shape
    assert (len(stored), stored.dim(), stored.numel()) == (COUNT, 2, COUNT * DIM)
    assert (stored.dtype, stored.device, stored.requires_grad) == (whole.dtype, whole.device, False)
    assert (stored.ndim, stored.nbytes) == (2, whole.nbytes)
    made = stored.new_zeros(3, 2)
    assert type(made) is Tensor
    assert torch.equal(made, whole.new_zeros(3, 2))
    assert stored.to(torch.float32).dtype == torch.float32
    assert stored[:12].shape == (12, DIM)


def test_rows_are_picked_in_any_order() -> None:
    stored, whole = both()
    places = torch.randperm(COUNT)[:333]
    (weight,) = weights(3)
    picked = stored.pick(places)
    torch.testing.assert_close(functional.linear(picked, weight), whole[places] @ weight.t())
    assert torch.equal(picked.to_tensor(), whole[places])


def test_rows_of_one_table_are_picked_in_any_order() -> None:
    table = torch.randn(50, DIM, dtype=torch.float64)
    places = torch.tensor([7, 0, 3])
    whole = StoredRows.of([RowPart(table)], 50)
    assert torch.equal(whole.pick(places).to_tensor(), table[places])
    rows = torch.tensor([9, 8, 7, 6, 5, 4, 3, 2])
    some = StoredRows.of([RowPart(table, rows)], 8)
    assert torch.equal(some.pick(places).to_tensor(), table[rows[places]])


def test_products_of_two_parts_serve_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, whole = both()
    neighbor, own = weights(4, 2)
    even, odd = torch.arange(0, COUNT, 2), torch.arange(1, COUNT, 2)
    parts, kept = [stored.pick(places) for places in (even, odd)], []
    for part in parts:
        part.expect([own], 60)
        kept.append(functional.linear(part, neighbor))
    first, second = (dict(part.products()) for part in parts)
    assert list(first) == list(second) == [neighbor, own]
    assert [len(product) for product in first.values()] == [450, 60]

    def make() -> Tensor:
        return torch.stack((first[own], second[own]), 1).flatten(0, 1)

    stored.supply(own, make)
    monkeypatch.setattr(row_reader.RowReader, "blocks", None)
    found = functional.linear(stored[:100], own)
    torch.testing.assert_close(found, whole[:100] @ own.t())
    torch.testing.assert_close(kept[1], whole[odd] @ neighbor.t())


def test_no_rows() -> None:
    table = torch.randn(4, DIM, dtype=torch.float64)
    none = torch.zeros(0, dtype=torch.int64)
    rows = StoredRows.of([RowPart(table, none)], 0)
    (weight,) = weights(3)
    out = functional.linear(rows, weight)
    assert out.shape == (0, 3)
    assert torch.equal(*gradients(out.sum(), [weight]), torch.zeros_like(weight))


def test_a_product_that_was_changed_in_place_serves_nobody() -> None:
    (weight,) = weights(6)
    rows, whole = both()
    first = functional.leaky_relu_(functional.linear(rows, weight))
    second = functional.linear(rows[:300], weight)
    torch.testing.assert_close(second, functional.linear(whole[:300], weight))
    torch.testing.assert_close(first, functional.leaky_relu(functional.linear(whole, weight)))


def test_a_product_serves_none_with_the_transposed_matrix() -> None:
    (weight,) = weights(DIM)
    rows, whole = both()
    ways = [rows @ weight, functional.linear(rows, weight), rows @ weight]
    expected = [whole @ weight, functional.linear(whole, weight), whole @ weight]
    for found, other in zip(ways, expected, strict=True):
        torch.testing.assert_close(found, other)


def test_arguments_by_name_are_seen_too() -> None:
    (weight,) = weights(6)
    rows, whole = both()
    expected = functional.linear(whole, weight)
    torch.testing.assert_close(functional.linear(input=rows, weight=weight), expected)
    out = torch.empty(COUNT, 6, dtype=torch.float64)
    torch.mm(rows, weight.detach().t(), out=out)
    torch.testing.assert_close(out, expected)


def test_dropout_after_dropout_drops_of_what_is_left() -> None:
    rows, whole = both()
    nodes = Nodes("paper", torch.arange(COUNT), None, 11)

    def twice(x: Rows) -> Tensor:
        return torch.clone(drop_rows(nodes, drop_rows(nodes, x, 0.2, 7), 0.5, 0))

    torch.testing.assert_close(twice(rows), twice(whole))
