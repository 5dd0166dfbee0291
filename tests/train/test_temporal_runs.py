"""Runs in time, from tables to predictions: what decides is what came last before each node."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopper
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.partition import partition_graph

SHOPS, ACCOUNTS, PAYMENTS = 300, 40, 3000


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Shops, asked about at some time: whether the last payment before that was above 0."""
    generator, folder = np.random.default_rng(3), tmp_path_factory.mktemp("payments")
    (folder / "tables").mkdir()
    when, asked = generator.permutation(PAYMENTS), generator.integers(1500, PAYMENTS, SHOPS)
    payer, paid = generator.integers(0, ACCOUNTS, PAYMENTS), generator.integers(0, SHOPS, PAYMENTS)
    amount = generator.normal(size=PAYMENTS).round(3)
    tables = {
        "nodes__account": [["id", "age"], *([f"a{i}", i % 7] for i in range(ACCOUNTS))],
        "edges__account__pays__shop": [["src", "dst", "time", "amount"]],
        "nodes__shop": [["id", "label", "time", "size"]],
    }
    for place in range(PAYMENTS):
        row = [f"a{payer[place]}", f"s{paid[place]}", when[place], amount[place]]
        tables["edges__account__pays__shop"].append(row)
    for shop in range(SHOPS):
        before = np.flatnonzero((paid == shop) & (when <= asked[shop]))
        last = amount[before[np.argmax(when[before])]] if before.size else -1.0
        row = [f"s{shop}", int(last > 0), asked[shop], round(float(generator.random()), 3)]
        tables["nodes__shop"].append(row)
    for name, rows in tables.items():
        with (folder / "tables" / f"{name}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows(rows)
    options = ImportOptions(split=RandomSplit(0.6, 0.2, by_time=True))
    import_graph("csv", str(folder / "tables"), folder / "graph", options)
    return GraphDirectory.open(folder / "graph")


def settings(parts: Path, run_dir: Path, **train: Any) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(parts)},
        "model": {"name": "rgcn", "layers": 1, "edge_features": True},
        "sampler": {"kind": "temporal", "fanouts": [1], "kind_options": {"pick": "recent"}},
        "train": {
            "engine": "zero_hop",
            "epochs": 12,
            "batch_size": 16,
            "learning_rate": 0.1,
            "run_dir": str(run_dir),
        }
        | train,
    }


def epochs_of(run: Path) -> list[list[float]]:
    lines = (run / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration_losses"] for line in lines]


def test_what_came_last_is_learned_and_predicted(graph: GraphDirectory, tmp_path: Path) -> None:
    """Scores look at the last payment too; a resumed run is the same bit for bit."""
    parts = tmp_path / "parts"
    partition_graph(graph, parts, 2, "random")
    run = hopper.train(settings(parts, tmp_path / "run"))
    losses = epochs_of(Path(run.run_dir))
    # Chance is 0.69.
    assert np.mean(losses[-1]) < 0.2
    hopper.train(settings(parts, tmp_path / "again", epochs=5, checkpoint_every=5))
    hopper.train(settings(parts, tmp_path / "again", checkpoint_every=5, resume=True))
    assert epochs_of(tmp_path / "again") == losses
    found = hopper.predict(run.run_dir, nodes="test")
    labels = graph.labels("shop")[found.ids]
    score = run.summary["scores"]["test"]["accuracy"]
    assert score > 0.85
    assert float((found.values == labels).mean()) == score
    assert graph.times("shop")[graph.split("train")].max() <= graph.times("shop")[found.ids].min()
