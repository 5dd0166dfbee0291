"""Rows that other ranks wait for are made first, and the two parts are put together again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hopper.graph.schema import Relation
from hopper.partials import Wires
from hopper.partials.join_parts import join_parts
from hopper.partials.splits import make_awaited_first
from hopper.partials.wire import RowKind

CITES = Relation("paper", "cites", "paper")
WRITES = Relation("author", "writes", "paper")


def wires(*made_first: str, raw: frozenset[str] = frozenset()) -> Wires:
    return Wires({}, raw, {}, False, frozenset(made_first), 4)


def test_rows_that_go_out_and_those_of_sums_are_awaited() -> None:
    rows: dict[RowKind, np.ndarray] = {CITES: np.array([5, 1, 5]), "author": np.array([2])}
    added = {CITES: np.array([3, 1]), WRITES: np.array([0])}
    ordered = make_awaited_first(wires("paper"), {"paper": 7, "author": 3}, rows, added)
    assert list(ordered.splits) == ["paper"]
    assert ordered.splits["paper"].awaited.tolist() == [1, 3, 5]
    assert ordered.splits["paper"].rest.tolist() == [0, 2, 4, 6]
    assert ordered.rows[CITES].tolist() == [2, 0, 2]
    assert ordered.added[CITES].tolist() == [1, 0]
    # Authors are not split: their rows count among all.
    assert ordered.rows["author"].tolist() == [2]
    assert ordered.added[WRITES].tolist() == [0]
    assert ordered.sizes == {"paper": 3, "author": 3}
    assert rows[CITES].tolist() == [5, 1, 5]


def test_input_rows_that_go_out_wait_for_nothing() -> None:
    rows: dict[RowKind, np.ndarray] = {"paper": np.array([4, 0]), CITES: np.array([2])}
    ordered = make_awaited_first(
        wires("paper", raw=frozenset({"paper"})), {"paper": 5}, rows, {CITES: np.array([1])}
    )
    assert ordered.splits["paper"].awaited.tolist() == [1, 2]
    assert ordered.rows["paper"].tolist() == [4, 0]
    assert ordered.rows[CITES].tolist() == [1]


@pytest.mark.parametrize("rows", [[], [2, 0, 1]], ids=["none", "all"])
def test_a_type_stays_whole_where_none_or_all_of_its_rows_are_awaited(rows: list[int]) -> None:
    outgoing: dict[RowKind, np.ndarray] = {CITES: np.array(rows, np.int64)}
    ordered = make_awaited_first(wires("paper"), {"paper": 3}, outgoing, {})
    assert ordered.splits == {}
    assert ordered.rows[CITES].tolist() == rows


def test_the_first_two_parts_are_joined_in_place_and_the_others_follow() -> None:
    draws = torch.Generator().manual_seed(1)
    parts = [
        torch.randn(count, 2, 3, generator=draws, dtype=torch.float64, requires_grad=True)
        for count in (3, 2, 4, 0, 1)
    ]
    places = torch.tensor([1, 2, 4]), torch.tensor([0, 3])
    joined = join_parts(parts, places)
    expected = torch.cat([*torch.cat(parts[:2])[[3, 0, 1, 4, 2]].split(5), *parts[2:]])
    assert torch.equal(joined, expected)
    assert torch.autograd.gradcheck(lambda *tensors: join_parts(tensors, places), parts)


def test_one_part_is_not_copied() -> None:
    rows = torch.zeros(3, 2)
    assert join_parts([rows]) is rows
    assert torch.equal(join_parts([rows, rows + 1]), torch.cat((rows, rows + 1)))
