"""Runs in time, from tables to predictions: what decides is what came last before each node."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopper
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.hetero.divide import divide_graph
from hopper.partition import partition_graph
from hopper.train.checkpoint_files import CheckpointFiles

SHOPS, ACCOUNTS, PAYMENTS = 300, 40, 3000
# Within the last epoch of 6 iterations, whose checkpoints are the two that are kept.
EVERY = 67


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
    run = hopper.train(settings(parts, tmp_path / "run", checkpoint_every=EVERY))
    losses = epochs_of(Path(run.run_dir))
    # Chance is 0.69.
    assert np.mean(losses[-1]) < 0.2
    again = Path(shutil.copytree(run.run_dir, tmp_path / "again"))
    CheckpointFiles(again).forget_models_after(EVERY)
    (again / "summary.json").unlink()
    hopper.train(settings(parts, again, checkpoint_every=EVERY, resume=True))
    assert epochs_of(again) == losses
    assert 0 < sum(map(len, losses)) - EVERY < len(losses[-1])
    found = hopper.predict(run.run_dir, nodes="test")
    labels = graph.labels("shop")[found.ids]
    score = run.summary["scores"]["test"]["accuracy"]
    assert score > 0.85
    assert float((found.values == labels).mean()) == score
    assert graph.times("shop")[graph.split("train")].max() <= graph.times("shop")[found.ids].min()


def test_purchases_are_predicted_at_their_times(tmp_path: Path) -> None:
    """Users buy what the last one before them bought: labels of edges, and links, in time."""
    generator = np.random.default_rng(1)
    when = np.arange(600)
    user, item = generator.integers(0, 30, 600), generator.integers(0, 12, 600)
    label = (np.roll(item, 1) == item - 1).astype(np.int64)
    buys = ("user", "buys", "item")
    features = {"user": np.eye(30), "item": np.eye(12)}
    edges = {buys: np.stack([user, item]), ("item", "sold_to", "user"): np.stack([item, user])}
    times = {buys: when, ("item", "sold_to", "user"): when}
    options = ImportOptions(split=RandomSplit(0.7, 0.15, by_time=True))
    given: dict[str, Any] = {"features": features, "times": times, "options": options}
    found = {}
    for task, more in (("labels", {"labels": {buys: label}}), ("links", {"target": buys})):
        with pytest.warns(UserWarning, match="split by time"):
            directory = GraphDirectory.from_arrays(tmp_path / task, edges, **given, **more)
        servers = 2 if task == "labels" else 1
        partition_graph(directory, tmp_path / f"{task}-parts", servers, "random")
        values = settings(tmp_path / f"{task}-parts", tmp_path / f"{task}-run", epochs=2)
        values["model"] = {"name": "rgcn", "layers": 1, "hidden": 6}
        values["train"]["engine"] = "cooperative"
        values["task"] = {"decoder": "mlp"} if task == "labels" else {"num_negatives": 4}
        found[task] = hopper.train(values)
    predicted = hopper.predict(found["labels"].run_dir, nodes="test")
    score = found["labels"].summary["scores"]["test"]["accuracy"]
    assert float((predicted.values == label[predicted.ids]).mean()) == pytest.approx(score)
    run = found["links"].run_dir
    before, early = (
        hopper.predict(run, what="embeddings", at=time, node_type="user").values for time in (-1, 5)
    )
    # Who has bought something by then has another row, if no later purchase that is to be
    # predicted is told by it.
    held_out = {
        (u, v)
        for each in map(directory.links, ("val", "test"))
        for u, v in zip(each.src.tolist(), each.dst.tolist(), strict=True)
    }
    first = [u for u, v in zip(user[:6], item[:6], strict=True) if (u, v) not in held_out]
    assert before.shape == (30, 6)
    assert np.flatnonzero((before != early).any(1)).tolist() == sorted(first)
    assert first
    for at, run_dir, told in (
        (None, run, r"^--at: the run's edges have times"),
        (3, found["labels"].run_dir, r"^--at 3: edges have times of their own"),
    ):
        what = "labels" if at else "embeddings"
        with pytest.raises(RequestError, match=told):
            hopper.predict(run_dir, what=what, at=at)


def test_where_relations_are_divided_predictions_are_what_was_scored(
    graph: GraphDirectory, tmp_path: Path
) -> None:
    divide_graph(graph, tmp_path / "parts", 2, "meta", layers=1)
    run = hopper.train(settings(tmp_path / "parts", tmp_path / "run", engine="raf", epochs=4))
    found = hopper.predict(run.run_dir, nodes="test")
    score = run.summary["scores"]["test"]["accuracy"]
    assert score > 0.6
    assert float((found.values == graph.labels("shop")[found.ids]).mean()) == score
