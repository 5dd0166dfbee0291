"""Epochs in which adaptive merging compares are told apart from those in which it has settled."""

from __future__ import annotations

from typing import Any

from benchmarks.paper.merging_loss import ADAPTIVE, OFF, settled_table
from benchmarks.paper.tables import NONE


def make_cell(compared: list[list[int]]) -> dict[str, Any]:
    """Return a cell whose epochs take a second, and half a second where merging has settled.

    compared: for each round, the epochs that compare.
    """
    rounds = range(len(compared))
    adaptive = [
        {
            "seconds": [1.0 if epoch <= max(comparing) else 0.5 for comparing in compared],
            "decisions": [
                {"merge": 0, "merge_tried": 1}
                if epoch in comparing
                else {"merge": int(epoch > max(comparing))}
                for comparing in compared
            ],
        }
        for epoch in range(6)
    ]
    off = [{"seconds": [1.0 for _ in rounds], "decisions": [{} for _ in rounds]}] * 6
    sides = {OFF.role: {"epochs": off}, ADAPTIVE.role: {"epochs": adaptive}}
    return {"name": "cell", "rounds": len(compared), "problems": [], "sides": sides}


def test_settled_epochs_are_told_apart() -> None:
    table = settled_table({"cells": [make_cell([[1, 2], [1, 2]])]})
    (row,) = table.rows
    # Of six epochs the last three take half as long, the first of which is not settled yet.
    assert row == ["cell", "1, 1", "2, 2", "1.33 (1.33 to 1.33)", "2.00 (2.00 to 2.00)", "2"]


def test_a_round_that_has_not_settled_is_left_out() -> None:
    (row,) = settled_table({"cells": [make_cell([[1, 2], [1, 2, 3, 4]])]}).rows
    assert row[4:] == ["2.00", "1"]
    (row,) = settled_table({"cells": [make_cell([[1, 2, 3, 4]])]}).rows
    assert row[4:] == [NONE, "0"]
