"""Runs that predict labels of edges, from tables to scores and predictions."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopper
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.schema import Relation
from hopper.partition import partition_graph
from hopper.train.checkpoint_files import CheckpointFiles

EDGE = Relation("node", "edge", "node")
# Within the second epoch.
CHECKPOINT_EVERY = 30


@pytest.fixture(scope="module")
def graph(
    community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory
) -> GraphDirectory:
    """The community graph as tables. An edge's label says whether its ends are of one community.
    Nine edges in ten have a label."""
    near = Relation("item", "near", "item")
    topology, community = community_graph.topology(near), community_graph.labels("item")
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    folder = tmp_path_factory.mktemp("edge-labels")
    (folder / "tables").mkdir()
    with (folder / "tables" / "nodes.csv").open("w", newline="") as stream:
        rows = np.asarray(community_graph.features("item")).tolist()
        csv.writer(stream).writerows(
            [["id", *range(len(rows[0]))], *([i, *row] for i, row in enumerate(rows))]
        )
    with (folder / "tables" / "edges.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["src", "dst", "label"])
        for number, (u, v) in enumerate(zip(topology.indices.tolist(), dst.tolist(), strict=True)):
            known = number % 10
            writer.writerow([u, v, int(community[u] == community[v]) if known else ""])
    options = ImportOptions(split=RandomSplit(0.8, 0.1))
    import_graph("csv", str(folder / "tables"), folder / "graph", options)
    return GraphDirectory.open(folder / "graph")


@pytest.fixture(scope="module")
def parts(graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parts") / "parts"
    partition_graph(graph, out, 2, "random")
    return out


def make_values(parts: Path, run_dir: Path, **train: Any) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(parts)},
        "model": {"name": "sage", "layers": 2, "hidden": 16},
        "sampler": {"fanouts": [5, 5]},
        "train": {
            "engine": "cooperative",
            "epochs": 2,
            "batch_size": 128,
            "learning_rate": 0.03,
            "more_metrics": ["macro_f1", "roc_auc"],
            "checkpoint_every": CHECKPOINT_EVERY,
            "run_dir": str(run_dir),
        }
        | train,
    }


def read_epochs(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained_run(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> hopper.RunResult:
    return hopper.train(make_values(parts, tmp_path_factory.mktemp("runs") / "run"))


def test_labels_and_splits_are_imported_from_tables(graph: GraphDirectory) -> None:
    schema = graph.schema
    assert (schema.target, schema.predicted) == (EDGE, "edge")
    labels = graph.labels(EDGE)
    assert (labels == -1).sum() == -(-schema.relations[EDGE].count // 10)
    ids = np.concatenate([graph.split(name) for name in ("train", "val", "test")])
    np.testing.assert_array_equal(np.sort(ids), np.flatnonzero(labels >= 0))


def test_scores_equal_those_of_predicted_rows(
    trained_run: hopper.RunResult, graph: GraphDirectory
) -> None:
    """The decoder scores the predicted rows of both ends; torchmetrics computes the metrics."""
    from torchmetrics.functional import classification

    rows = torch.from_numpy(hopper.predict(trained_run.run_dir, what="embeddings").values)
    decoder = hopper.load_model(trained_run.run_dir).link_decoder
    links = graph.links("test")
    assert links.labels is not None
    with torch.no_grad():
        logits = decoder(rows[links.src], torch.zeros(links.count).long(), rows[links.dst])
    labels, predicted = torch.from_numpy(links.labels), logits.argmax(1)
    scores = json.loads((Path(trained_run.run_dir) / "summary.json").read_text())["scores"]["test"]
    assert scores["accuracy"] == pytest.approx(float((predicted == labels).double().mean()))
    expected = classification.multiclass_f1_score(predicted, labels, num_classes=2, average="macro")
    assert scores["macro_f1"] == pytest.approx(float(expected))
    expected = classification.binary_auroc(torch.softmax(logits.double(), 1)[:, 1], labels)
    assert scores["roc_auc"] == pytest.approx(float(expected), abs=1e-4)
    # The ends' features tell their communities.
    assert scores["roc_auc"] > 0.7
    predictions = hopper.predict(trained_run.run_dir, what="logits", nodes="test")
    np.testing.assert_array_equal(predictions.ids, links.ids)
    np.testing.assert_allclose(predictions.values, logits.numpy(), rtol=1e-4, atol=1e-5)


def test_predictions_of_edges(
    trained_run: hopper.RunResult, graph: GraphDirectory, tmp_path: Path
) -> None:
    import pandas

    run = trained_run.run_dir
    predictions = hopper.predict(run, out=tmp_path / "all")
    np.testing.assert_array_equal(predictions.ids, np.arange(graph.schema.relations[EDGE].count))
    table = pandas.read_parquet(tmp_path / "all").sort_values("id")
    assert list(table.columns) == ["id", "labels", "src", "dst"]
    topology = graph.topology(EDGE)
    src, dst = np.empty_like(topology.indices), np.empty_like(topology.indices)
    src[topology.edge_ids] = topology.indices
    dst[topology.edge_ids] = np.repeat(np.arange(300), np.diff(topology.indptr))
    np.testing.assert_array_equal(table["src"], src)
    np.testing.assert_array_equal(table["dst"], dst)
    labels, split = graph.labels(EDGE), graph.split("test")
    scores = json.loads((Path(run) / "summary.json").read_text())["scores"]["test"]
    accuracy = (predictions.values[split] == labels[split]).mean()
    assert scores["accuracy"] == pytest.approx(accuracy)
    chosen_ids = np.array([7, 3, 200])
    np.save(tmp_path / "some.npy", chosen_ids)
    probabilities = hopper.predict(run, nodes=str(tmp_path / "some.npy"), what="probabilities")
    np.testing.assert_array_equal(probabilities.ids, np.sort(chosen_ids))
    np.testing.assert_array_equal(
        probabilities.values.argmax(1), predictions.values[np.sort(chosen_ids)]
    )
    np.testing.assert_allclose(probabilities.values.sum(1), 1, rtol=1e-6)
    with pytest.raises(hopper.RequestError, match=r"--nodes nobody: expected all, one of the spl"):
        hopper.predict(run, nodes="nobody")


def test_predictions_where_topology_is_divided(
    trained_run: hopper.RunResult, graph: GraphDirectory, tmp_path: Path
) -> None:
    """Ranks exchange the edges that only some of them store."""
    expected = hopper.predict(trained_run.run_dir, what="logits")
    divided = partition_graph(
        graph, tmp_path / "parts", 2, "random", seed=5, topology="halo:1"
    ).path
    predictions = hopper.predict(
        trained_run.run_dir, what="logits", overrides=[f"--data.partitioned={divided}"]
    )
    np.testing.assert_array_equal(predictions.ids, expected.ids)
    np.testing.assert_allclose(predictions.values, expected.values, rtol=1e-4, atol=1e-5)


def test_the_baseline_is_the_commonest_label(
    trained_run: hopper.RunResult, graph: GraphDirectory
) -> None:
    train, test = graph.links("train").labels, graph.links("test").labels
    assert train is not None
    assert test is not None
    commonest = np.bincount(train).argmax()
    summary = json.loads((Path(trained_run.run_dir) / "summary.json").read_text())
    assert summary["baselines"]["test"]["accuracy"] == pytest.approx((test == commonest).mean())


def test_engines_agree_and_a_resumed_run_is_the_same(
    trained_run: hopper.RunResult, parts: Path, tmp_path: Path
) -> None:
    """A resumed run has the same bits. Another engine agrees up to rounding."""
    resumed = Path(shutil.copytree(trained_run.run_dir, tmp_path / "resumed"))
    CheckpointFiles(resumed).forget_models_after(CHECKPOINT_EVERY)
    (resumed / "summary.json").unlink()
    hopper.train(make_values(parts, resumed, resume=True))
    hopper.train(make_values(parts, tmp_path / "hop", engine="hop", epochs=1, more_metrics=[]))
    expected_epochs = read_epochs(Path(trained_run.run_dir))
    for expected, epoch in zip(expected_epochs, read_epochs(resumed), strict=True):
        assert expected["iteration_losses"] == epoch["iteration_losses"]
        assert expected["val"] == epoch["val"]
    assert len(expected_epochs[0]["iteration_losses"]) < CHECKPOINT_EVERY
    summary = json.loads((resumed / "summary.json").read_text())
    assert summary["scores"] == trained_run.summary["scores"]
    (first,) = read_epochs(tmp_path / "hop")
    np.testing.assert_allclose(
        first["iteration_losses"], expected_epochs[0]["iteration_losses"], rtol=1e-4
    )
