"""The same run twice, and the same run on other numbers of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
GLOBAL_BATCH = 16
WORLDS = (1, 4)
EPOCHS = 2
KINDS = ("float64", "float32", "float32 again")
ENGINES = ("hop", "cooperative")
"""The one moves models and rows, the other exchanges what layers compute. The others compute with
the same kernels, and exchange the same gradients; test_conformance.py compares their losses."""


def run_config(
    partitioned: Path, run_dir: Path, world: int, engine: str, dtype: str
) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(partitioned)},
        "model": {"name": "gat", "layers": 2, "hidden": 8, "heads": 2, "dropout": 0.4},
        "sampler": {"fanouts": [5, 3]},
        "train": {
            "engine": engine,
            "batch_size": GLOBAL_BATCH // world,
            "epochs": EPOCHS,
            "learning_rate": 0.01,
            "dtype": dtype,
            "evaluate_every": EPOCHS,
            "run_dir": str(run_dir),
        },
        "hop": {"merge": "off"},
    }


def test_losses_do_not_depend_on_the_number_of_ranks(
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    results: dict[tuple[int, str, str], dict[str, Any]] = {}
    for world in WORLDS:
        partitioned = tmp_path / f"parts-{world}"
        partition_graph(community_graph, partitioned, world, "metis", backend="pymetis")
        addresses = serve_partitions(partitioned, world) if world > 1 else []
        kinds = KINDS if world == 4 else KINDS[:2]
        cases = list(itertools.product(ENGINES, kinds))
        configs = []
        for engine, kind in cases:
            run_dir = tmp_path / f"run-{world}-{engine}-{kind}".replace(" ", "-")
            config = run_config(partitioned, run_dir, world, engine, kind.split()[0])
            config["cluster"] = {"servers": addresses, "ranks_per_server": 1}
            configs.append(config)
        trained = train_cases(configs, world, tmp_path / str(world))
        results |= {(world, *case): run for case, run in zip(cases, trained, strict=True)}

    for world, engine in itertools.product(WORLDS, ENGINES):
        double = results[world, engine, "float64"]
        by_epoch = np.array(double["losses"]).reshape(EPOCHS, -1).mean(1)
        assert by_epoch[-1] < by_epoch[0]
        alone = results[1, engine, "float64"]
        assert double["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        assert double["val"] == alone["val"]
    for engine in ENGINES:
        single, again = (results[4, engine, kind] for kind in KINDS[1:])
        alone = results[1, engine, KINDS[1]]
        assert single["losses"] == again["losses"], "the same run twice differs"
        assert single["val"] == again["val"]
        assert single["losses"] == pytest.approx(alone["losses"], rel=1e-5)
