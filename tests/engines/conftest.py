"""Trains many small configurations on one set of ranks: starting ranks takes most of the time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RANK_SCRIPT = Path(__file__).with_name("parity_rank.py")


@pytest.fixture(scope="session")
def train_cases(
    run_ranks: Callable[..., list[Any]],
) -> Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]:
    """Train every configuration in turn on ``world`` ranks, and return rank 0's results by case."""

    def train(configs: list[dict[str, Any]], world: int, folder: Path) -> list[dict[str, Any]]:
        folder.mkdir(exist_ok=True)
        cases_file = folder / "cases.json"
        cases_file.write_text(json.dumps([{"config": config} for config in configs]))
        ranks = run_ranks(RANK_SCRIPT, world, folder / "ranks", str(cases_file))
        for results in ranks[1:]:
            assert [case["losses"] for case in results] == [case["losses"] for case in ranks[0]]
        return list(ranks[0])

    return train
