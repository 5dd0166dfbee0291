"""Runs on graphs with times, from tables to predictions. The last event before a node decides its
label."""

import csv
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
CHECKPOINT_EVERY = 67


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> GraphDirectory:
    """Shops with a time each. The label says whether the last payment before it was above 0."""
    generator, folder = np.random.default_rng(3), tmp_path_factory.mktemp("payments")
    (folder / "tables").mkdir()
    paid_at, asked_at = generator.permutation(PAYMENTS), generator.integers(1500, PAYMENTS, SHOPS)
    payer, shop_paid = (generator.integers(0, count, PAYMENTS) for count in (ACCOUNTS, SHOPS))
    amount = generator.normal(size=PAYMENTS).round(3)
    tables = {
        "nodes__account": [["id", "age"], *([f"a{i}", i % 7] for i in range(ACCOUNTS))],
        "edges__account__pays__shop": [["src", "dst", "time", "amount"]],
        "nodes__shop": [["id", "label", "time", "size"]],
    }
    for payment in range(PAYMENTS):
        row = [f"a{payer[payment]}", f"s{shop_paid[payment]}", paid_at[payment], amount[payment]]
        tables["edges__account__pays__shop"].append(row)
    for shop in range(SHOPS):
        before = np.flatnonzero((shop_paid == shop) & (paid_at <= asked_at[shop]))
        last = amount[before[np.argmax(paid_at[before])]] if before.size else -1.0
        row = [f"s{shop}", int(last > 0), asked_at[shop], round(float(generator.random()), 3)]
        tables["nodes__shop"].append(row)
    for name, rows in tables.items():
        with (folder / "tables" / f"{name}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows(rows)
    options = ImportOptions(split=RandomSplit(0.6, 0.2, by_time=True))
    import_graph("csv", str(folder / "tables"), folder / "graph", options)
    return GraphDirectory.open(folder / "graph")


def make_values(parts: Path, run_dir: Path, **train: Any) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(parts)},
        "model": {"name": "rgcn", "layers": 1, "edge_features": True},
        "sampler": {"fanouts": [1], "kind_options": {"pick": "recent"}},
        "train": {
            "engine": "zero_hop",
            "epochs": 12,
            "batch_size": 16,
            "learning_rate": 0.1,
            "run_dir": str(run_dir),
        }
        | train,
    }


def test_the_label_by_the_last_payment_is_learned_and_predicted(graph, tmp_path):
    """Evaluation sees the last payment too. A resumed run has the same bits."""
    parts = tmp_path / "parts"
    partition_graph(graph, parts, 2, "random")
    run = hopper.train(make_values(parts, tmp_path / "run", checkpoint_every=CHECKPOINT_EVERY))
    losses = [epoch.iteration_losses for epoch in run.epochs]
    # Chance is 0.69.
    assert np.mean(losses[-1]) < 0.2
    resumed = Path(shutil.copytree(run.run_dir, tmp_path / "again"))
    CheckpointFiles(resumed).forget_models_after(CHECKPOINT_EVERY)
    (resumed / "summary.json").unlink()
    again = make_values(parts, resumed, checkpoint_every=CHECKPOINT_EVERY, resume=True)
    assert [epoch.iteration_losses for epoch in hopper.train(again).epochs] == losses
    assert 0 < sum(map(len, losses)) - CHECKPOINT_EVERY < len(losses[-1])
    predictions = hopper.predict(run.run_dir, nodes="test")
    labels = graph.labels("shop")[predictions.ids]
    score = run.summary["scores"]["test"]["accuracy"]
    assert score > 0.85
    assert float((predictions.values == labels).mean()) == score
    times = graph.times("shop")
    assert times[graph.split("train")].max() <= times[predictions.ids].min()


def test_purchases_are_predicted_at_their_times(tmp_path):
    """Users buy what the user before them bought. Labels of edges and links are learned in time."""
    generator = np.random.default_rng(1)
    bought_at = np.arange(600)
    user, item = generator.integers(0, 30, 600), generator.integers(0, 12, 600)
    label = (np.roll(item, 1) == item - 1).astype(np.int64)
    buys = ("user", "buys", "item")
    features = {"user": np.eye(30), "item": np.eye(12)}
    edges = {buys: np.stack([user, item]), ("item", "sold_to", "user"): np.stack([item, user])}
    times = {buys: bought_at, ("item", "sold_to", "user"): bought_at}
    options = ImportOptions(split=RandomSplit(0.7, 0.15, by_time=True))
    arrays: dict[str, Any] = {"features": features, "times": times, "options": options}
    results = {}
    for task, target in (("labels", {"labels": {buys: label}}), ("links", {"target": buys})):
        with pytest.warns(UserWarning, match="split by time"):
            directory = GraphDirectory.from_arrays(tmp_path / task, edges, **arrays, **target)
        servers = 2 if task == "labels" else 1
        partition_graph(directory, tmp_path / f"{task}-parts", servers, "random")
        values = make_values(tmp_path / f"{task}-parts", tmp_path / f"{task}-run", epochs=2)
        values["model"] = {"name": "rgcn", "layers": 1, "hidden": 6}
        values["train"]["engine"] = "cooperative"
        values["task"] = {"decoder": "mlp"} if task == "labels" else {"num_negatives": 4}
        results[task] = hopper.train(values)
    predictions = hopper.predict(results["labels"].run_dir, nodes="test")
    score = results["labels"].summary["scores"]["test"]["accuracy"]
    assert float((predictions.values == label[predictions.ids]).mean()) == pytest.approx(score)
    run = results["links"].run_dir
    before, at_5 = (
        hopper.predict(run, what="embeddings", at=time, node_type="user").values for time in (-1, 5)
    )
    # By time 5, users who have bought something have another row than before. Purchases of the
    # validation and test splits do not count.
    held_out = {
        (u, v)
        for links in map(directory.links, ("val", "test"))
        for u, v in zip(links.src.tolist(), links.dst.tolist(), strict=True)
    }
    known_buyers = [u for u, v in zip(user[:6], item[:6], strict=True) if (u, v) not in held_out]
    assert before.shape == (30, 6)
    assert np.flatnonzero((before != at_5).any(1)).tolist() == sorted(known_buyers)
    assert known_buyers
    for at, run_dir, message in (
        (None, run, r"^--at: the run's edges have times"),
        (3, results["labels"].run_dir, r"^--at 3: edges have times of their own"),
    ):
        what = "labels" if at else "embeddings"
        with pytest.raises(RequestError, match=message):
            hopper.predict(run_dir, what=what, at=at)


def test_with_divided_relations_predictions_have_the_scores_of_the_run(graph, tmp_path):
    divide_graph(graph, tmp_path / "parts", 2, "meta", layers=1)
    run = hopper.train(make_values(tmp_path / "parts", tmp_path / "run", engine="raf", epochs=4))
    predictions = hopper.predict(run.run_dir, nodes="test")
    score = run.summary["scores"]["test"]["accuracy"]
    assert score > 0.6
    assert float((predictions.values == graph.labels("shop")[predictions.ids]).mean()) == score
