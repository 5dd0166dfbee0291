"""Cora with its official split: the published neighbourhood, and two engines the same score."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, import_graph
from hopper.partition import partition_graph

from .conftest import RANK_SCRIPT

DATA = Path(
    os.environ.get("HOPPER_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data")
)
ENGINES = ("hop", "zero_hop")


@pytest.mark.skipif(not (DATA / "cora").is_dir(), reason=f"no real graphs at {DATA}")
def test_cora(
    serve_partitions: Callable[[Path, int], list[str]],
    run_ranks: Callable[..., list[Any]],
    tmp_path: Path,
) -> None:
    options = ImportOptions(row_normalize=True)
    import_graph("npy", str(DATA / "cora"), tmp_path / "graph", options)
    graph = GraphDirectory.open(tmp_path / "graph")
    partition_graph(graph, tmp_path / "parts", 2, "metis")
    addresses = serve_partitions(tmp_path / "parts", 2)
    cases = [
        {
            "config": {
                "data": {"partitioned": str(tmp_path / "parts")},
                "model": {"name": "gcn", "layers": 2, "hidden": 64, "dropout": 0.5},
                "sampler": {"fanouts": [-1, -1]},
                "train": {
                    "engine": engine,
                    "epochs": 60,
                    "learning_rate": 0.01,
                    "weight_decay": 5e-4,
                    "evaluate_every": 5,
                    "run_dir": str(tmp_path / engine),
                },
                "cluster": {"servers": addresses, "ranks_per_server": 1},
            }
        }
        for engine in ENGINES
    ]
    cases_file = tmp_path / "cases.json"
    cases_file.write_text(json.dumps(cases))
    run_ranks(RANK_SCRIPT, 2, tmp_path / "ranks", str(cases_file))
    accuracy = {
        engine: json.loads((tmp_path / engine / "summary.json").read_text())["scores"]["test"][
            "accuracy"
        ]
        for engine in ENGINES
    }
    assert accuracy["zero_hop"] > 0.79, accuracy
    # 1,000 test nodes: rounding may move the argmax of at most two of them.
    assert max(accuracy.values()) - min(accuracy.values()) <= 0.002, accuracy
