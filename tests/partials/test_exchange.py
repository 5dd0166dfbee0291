"""Rows that travel, gradients that come back: three real ranks, one of them without any row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROW = 2 * 4


@pytest.fixture(scope="module")
def ranks(
    run_ranks: Callable[..., list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("exchange_rank.py")
    return run_ranks(script, 3, tmp_path_factory.mktemp("exchange"))


def test_rows_come_in_order_of_rank(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["received"] == [[100, 101]]
    assert ranks[1]["received"] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert ranks[2]["received"] == []


def test_gradients_of_all_copies_come_back(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["gradient"] == [[22, 22], [11, 11], [11, 11]]
    assert ranks[1]["gradient"] == [[1, 1], [0, 0]]
    assert ranks[2]["gradient"] == []


def test_both_ways_are_counted_where_they_are_sent(ranks: list[dict[str, Any]]) -> None:
    assert [rank["bytes"] for rank in ranks] == [(4 + 1) * ROW, (1 + 4) * ROW, 0]
    assert all(rank["sync"] > 0 for rank in ranks)


def test_constants_cross_one_way(ranks: list[dict[str, Any]]) -> None:
    assert not any(rank["constant"] for rank in ranks)
    assert [rank["constant bytes"] for rank in ranks] == [4 * ROW, ROW, 0]


def test_own_work_is_done_while_rows_travel_and_while_their_gradients_do(
    ranks: list[dict[str, Any]],
) -> None:
    expected = ["start", "own work", "finish", "start", "own gradient", "finish"]
    assert [rank["events"] for rank in ranks] == [expected] * 3


def test_a_tensor_is_copied_as_it_is_and_sent_once_to_each_other_rank(
    ranks: list[dict[str, Any]],
) -> None:
    assert [rank["broadcast"] for rank in ranks] == [["-0.0", "1.5"]] * 3
    assert sum(rank["broadcast bytes"] for rank in ranks) == 2 * ROW
