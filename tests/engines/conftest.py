"""Training many configurations on one set of ranks, and comparing each with one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.parity import RecordedGradient
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.graph import GraphDirectory
from hopper.hetero.divide import divide_graph
from hopper.partition import partition_graph
from hopper.rehearsal.world import run_ranks
from hopper.train.rank import make_deterministic

from .exactness import assert_exact
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
TRAIN: dict[str, Any] = {
    "batch_size": 9,
    "epochs": 1,
    "dtype": "float64",
    "seed": 3,
    "evaluate_every": 0,
    "record_gradients": [0, 1],
    "iterations_per_epoch": 2,
}


@dataclass(frozen=True)
class Trained:
    """A case's configuration, rank 0's results, and what was recorded of its gradients."""

    values: dict[str, Any]
    result: dict[str, Any]
    recorded: list[RecordedGradient]


CheckEngines = Callable[..., dict[tuple[str, ...], Trained]]


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


@pytest.fixture
def check_engines(
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> CheckEngines:
    """Train cases, and assert that each has the loss and the gradient of one process.

    A case's name begins with that of an engine in :data:`ENGINES`; its value is its configuration
    by section. The graph is divided by node as the keywords say, for p3 by dimension as well, and
    for raf by relation.
    """

    def check(
        graph: GraphDirectory,
        cases: Mapping[tuple[str, ...], Sections],
        servers: int,
        ranks_per_server: int = 1,
        **division: Any,
    ) -> dict[tuple[str, ...], Trained]:
        divided: dict[str, Path] = {}
        for way in sorted({_way_of(name[0]) for name in cases}):
            out = divided[way] = tmp_path / f"{graph.path.name} {way}"
            if way == "by relation":
                divide_graph(graph, out, servers, "meta", layers=2)
            elif way == "by dimension":
                partition_graph(graph, out, servers, "random", features="by-dimension")
            else:
                partition_graph(graph, out, servers, **{"method": "random"} | division)
        configs = {}
        for number, (name, sections) in enumerate(cases.items()):
            parts = divided[_way_of(name[0])]
            cluster = {
                "servers": serve_partitions(parts, servers) if servers > 1 else [],
                "ranks_per_server": ranks_per_server,
            }
            run = {
                "data": {"partitioned": str(parts)},
                "train": {"run_dir": str(tmp_path / f"{graph.path.name}-{number}")},
                "cluster": cluster,
            }
            base = {"sampler": {"fanouts": [3, 2]}, "train": TRAIN, "hop": {"merge": "off"}}
            configs[name] = merged(base, ENGINES[name[0]], sections, run)
        world = servers * ranks_per_server
        results = train_cases(list(configs.values()), world, tmp_path / f"{graph.path.name} ranks")
        return {
            name: Trained(values, result, assert_exact(values, world, ", ".join(name))[1])
            for (name, values), result in zip(configs.items(), results, strict=True)
        }

    return check


def _way_of(engine: str) -> str:
    """How the graph of an engine is divided."""
    return {"p3": "by dimension", "raf": "by relation"}.get(engine, "by node")
