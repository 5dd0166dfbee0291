"""Training many configurations on one set of ranks, and comparing each with one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.rehearsal.world import run_ranks
from hopper.train.rank import make_deterministic

from .parity_rank import train_in_turn

RANK_SCRIPT = Path(__file__).with_name("parity_rank.py")
Sections = Mapping[str, Mapping[str, Any]]

# The ways in which engines train that exactness is stated of, by name.
ENGINES: dict[str, dict[str, Any]] = {
    "model_centric": {"train": {"engine": "model_centric"}},
    "zero_hop in passes": {"train": {"engine": "zero_hop", "micro_batch": 5}},
    "locality": {"train": {"engine": "locality"}},
    "hop": {"train": {"engine": "hop"}},
    "hop, one step merged": {"train": {"engine": "hop"}, "hop": {"merge": 1}},
    "hop, no pregather": {"train": {"engine": "hop"}, "hop": {"pregather": False}},
    "cooperative": {"train": {"engine": "cooperative"}},
    "naive": {"train": {"engine": BASELINES["naive"]}},
    "p3": {"train": {"engine": BASELINES["p3"]}},
    # A full batch is an epoch.
    "neutronstar": {
        "train": {"engine": BASELINES["neutronstar"], "epochs": 2, "iterations_per_epoch": 0}
    },
    "raf": {"train": {"engine": "raf"}},
}


def merged(*all_sections: Sections) -> dict[str, Any]:
    """A configuration with the keys of all sections; later ones win."""
    values: dict[str, Any] = {}
    for sections in all_sections:
        for section, keys in sections.items():
            values[section] = values.get(section, {}) | dict(keys)
    return values


@pytest.fixture(scope="session")
def train_cases() -> Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]:
    """Train every configuration in turn on ``world`` ranks, and return rank 0's results by case.

    The ranks are threads; tests/engines/test_real_graph.py has processes.
    """

    def train(configs: list[dict[str, Any]], world: int, folder: Path) -> list[dict[str, Any]]:
        cases = [make_config(config) for config in configs]
        make_deterministic()
        with pytest.MonkeyPatch.context() as patch:
            # Nobody reads these files after a power failure.
            patch.setattr(os, "fsync", lambda _file: None)
            ranks = run_ranks(
                world, cases[0].cluster.ranks_per_server, partial(train_in_turn, cases), timeout=60
            )
        for results in ranks[1:]:
            assert [case["losses"] for case in results] == [case["losses"] for case in ranks[0]]
        return list(ranks[0])

    return train
