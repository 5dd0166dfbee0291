"""The partition book: homes, rows, and ids that do not exist."""

from __future__ import annotations

import numpy as np
import pytest

from hopper.errors import GraphError
from hopper.partition import PartitionBook


def test_home_and_row_step_over_servers_without_nodes() -> None:
    book = PartitionBook(4, {"paper": [0, 2, 2, 5, 5], "venue": [0, 0, 0, 0, 0]})
    ids = np.arange(5)
    assert book.home("paper", ids).tolist() == [0, 0, 2, 2, 2]
    assert book.row("paper", ids).tolist() == [0, 1, 0, 1, 2]
    assert [book.count("paper", server) for server in range(4)] == [2, 0, 3, 0]
    assert book.total("paper") == 5
    assert book.home("venue", np.empty(0, np.int64)).size == 0
    assert book.home("paper", ids).dtype == book.row("paper", ids).dtype == np.int64


@pytest.mark.parametrize("bad_id", [-1, 5])
def test_an_id_out_of_range_is_named(bad_id: int) -> None:
    book = PartitionBook(2, {"paper": [0, 2, 5]})
    with pytest.raises(GraphError, match=rf"global id {bad_id} of node type 'paper'.*\[0, 5\)"):
        book.home("paper", np.array([0, bad_id]))
    with pytest.raises(GraphError, match=f"global id {bad_id}"):
        book.row("paper", np.array([bad_id]))


def test_an_unknown_type_or_server_is_named() -> None:
    book = PartitionBook(2, {"paper": [0, 2, 5]})
    with pytest.raises(GraphError, match="unknown node type 'author', expected one of: paper"):
        book.home("author", np.array([0]))
    with pytest.raises(GraphError, match="server 2 of 2 does not exist"):
        book.count("paper", 2)


@pytest.mark.parametrize(
    "offsets",
    [[0, 2], [1, 2, 3], [0, 3, 2], [0.0, 1.5, 2.0], [[0, 1, 2]], ["0", "1", "2"], [0, [1], 2]],
)
def test_unusable_offsets_are_refused(offsets: list[object]) -> None:
    with pytest.raises(GraphError, match=r"field 'offsets\.paper'"):
        PartitionBook(2, {"paper": offsets})  # type: ignore[dict-item]
