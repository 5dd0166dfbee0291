"""Runs that predict links or labels of edges, from start to scores and predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopper
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph
from hopper.tasks import decoder_of

from .conftest import NEAR
from .test_evaluation import ranks_of

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")


def make_values(graph: GraphDirectory, run_dir: Path, **train: Any) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(graph.path.parent / "2")},
        "model": {"name": "sage", "layers": 2, "hidden": 16},
        "sampler": {"fanouts": [5, 5]},
        "train": {
            "engine": "cooperative",
            "epochs": 2,
            "batch_size": 128,
            "learning_rate": 0.03,
            "run_dir": str(run_dir),
        }
        | train,
    }


def test_scores_of_links_equal_those_of_predicted_rows(edge_graphs, tmp_path):
    values = make_values(edge_graphs["links"], tmp_path / "run", engine="zero_hop", epochs=3)
    run = hopper.train(values | {"task": {"decoder": "distmult", "num_negatives": 20}})
    with pytest.raises(hopper.RequestError, match="--what labels: the run predicts links"):
        hopper.predict(run.run_dir)
    rows = hopper.predict(run.run_dir, what="embeddings")
    np.testing.assert_array_equal(rows.ids, np.arange(300))
    decoder = decoder_of(hopper.load_model(run.run_dir)).double()
    with torch.no_grad():
        values = torch.from_numpy(rows.values).double()
        ranks = ranks_of(edge_graphs["links"], values, decoder, None)
    score, chance = (by[run.metric]["test"] for by in (run.metrics, run.baselines))
    assert score == pytest.approx(float((1 / ranks).mean()), rel=1e-3)
    assert chance == pytest.approx(float((1 / np.arange(1, 301)).mean()))
    assert score > 2 * chance


@pytest.fixture(scope="module")
def trained_run(edge_graphs, tmp_path_factory) -> hopper.RunResult:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    return hopper.train(make_values(edge_graphs["labels"], run_dir))


def test_predictions_of_edges(trained_run, edge_graphs, tmp_path):
    import pandas

    run, graph = trained_run.run_dir, edge_graphs["labels"]
    predictions = hopper.predict(run, out=tmp_path / "all")
    np.testing.assert_array_equal(predictions.ids, np.arange(graph.schema.relations[NEAR].count))
    table = pandas.read_parquet(tmp_path / "all").sort_values("id")
    assert list(table.columns) == ["id", "labels", "src", "dst"]
    topology = graph.topology(NEAR)
    src, dst = np.empty_like(topology.indices), np.empty_like(topology.indices)
    src[topology.edge_ids] = topology.indices
    dst[topology.edge_ids] = topology.list_destinations()
    np.testing.assert_array_equal(table["src"], src)
    np.testing.assert_array_equal(table["dst"], dst)
    labels, split, train = graph.labels(NEAR), graph.split("test"), graph.links("train").labels
    accuracy = (predictions.values[split] == labels[split]).mean()
    assert trained_run.metrics["accuracy"]["test"] == pytest.approx(accuracy)
    commonest = np.bincount(np.asarray(train)).argmax()
    baseline = trained_run.baselines["accuracy"]["test"]
    assert baseline == pytest.approx((labels[split] == commonest).mean())
    # The ends' features tell their communities.
    assert accuracy > baseline
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


def test_predictions_where_topology_is_divided(trained_run, edge_graphs, tmp_path):
    """Ranks exchange the edges that only some of them store."""
    divided = tmp_path / "parts"
    partition_graph(edge_graphs["labels"], divided, 2, "random", seed=5, topology="partitioned")
    expected, predictions = (
        hopper.predict(trained_run.run_dir, what="logits", overrides=overrides)
        for overrides in ([], [f"--data.partitioned={divided}"])
    )
    np.testing.assert_array_equal(predictions.ids, expected.ids)
    np.testing.assert_allclose(predictions.values, expected.values, rtol=1e-4, atol=1e-5)
