"""Runs that predict links, from start to scores and predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopper
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation
from hopper.partition import partition_graph

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

NEAR = ("item", "near", "item")


@pytest.fixture(scope="module")
def graph(
    community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory
) -> GraphDirectory:
    """The community graph, whose edges are predicted."""
    topology = community_graph.topology(Relation(*NEAR))
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("near") / "graph",
        {NEAR: np.stack([topology.indices, dst])},
        features={"item": np.asarray(community_graph.features("item"))},
        target=NEAR,
        options=ImportOptions(split=RandomSplit(0.8, 0.1)),
    )


@pytest.fixture(scope="module")
def parts(graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("parts")
    for servers in (1, 2):
        partition_graph(graph, folder / str(servers), servers)
    return {servers: folder / str(servers) for servers in (1, 2)}


def make_values(parts: Path, run_dir: Path, **train: Any) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(parts)},
        "model": {"name": "sage", "layers": 2, "hidden": 16},
        "sampler": {"fanouts": [5, 5]},
        "task": {"decoder": "distmult", "num_negatives": 20},
        "train": {
            "engine": "zero_hop",
            "epochs": 3,
            "batch_size": 128,
            "learning_rate": 0.02,
            "more_metrics": ["hits@10"],
            "run_dir": str(run_dir),
        }
        | train,
    }


@pytest.fixture(scope="module")
def trained_run(
    parts: dict[int, Path], tmp_path_factory: pytest.TempPathFactory
) -> hopper.RunResult:
    return hopper.train(make_values(parts[2], tmp_path_factory.mktemp("links") / "run"))


def ranks_of(graph: GraphDirectory, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The rank of every test link for each of its ends, by scoring all candidates."""
    links = {name: graph.links(name) for name in graph.schema.splits}
    known = {
        pair
        for split_links in links.values()
        for pair in zip(split_links.src.tolist(), split_links.dst.tolist(), strict=True)
    }
    ranks = []
    for side in (1, 0):
        for pair in zip(links["test"].src.tolist(), links["test"].dst.tolist(), strict=True):
            fixed = pair[1 - side]
            scores = (rows * rows[fixed] * weights).sum(1)
            own_score = scores[pair[side]]
            others = [
                node
                for node in range(len(rows))
                if ((fixed, node) if side else (node, fixed)) not in known
            ]
            higher, equal = (scores[others] > own_score).sum(), (scores[others] == own_score).sum()
            ranks.append(1 + higher + equal / 2)
    return np.array(ranks)


def test_scores_equal_those_of_predicted_rows(
    trained_run: hopper.RunResult, graph: GraphDirectory
) -> None:
    with pytest.raises(hopper.RequestError, match="--what labels: the run predicts links"):
        hopper.predict(trained_run.run_dir)
    rows = hopper.predict(trained_run.run_dir, what="embeddings")
    np.testing.assert_array_equal(rows.ids, np.arange(300))
    decoder = hopper.load_model(trained_run.run_dir).link_decoder
    weights = decoder.relations[0].detach().numpy()
    ranks = ranks_of(graph, rows.values.astype(np.float64), weights.astype(np.float64))
    summary = json.loads((Path(trained_run.run_dir) / "summary.json").read_text())
    assert summary["scores"]["test"]["mrr"] == pytest.approx(float((1 / ranks).mean()), rel=1e-3)
    assert summary["scores"]["test"]["hits@10"] == pytest.approx(
        float((ranks <= 10).mean()), abs=0.01
    )
    # At least twice as good as a random order.
    chance = summary["baselines"]["test"]["mrr"]
    assert chance == pytest.approx(float((1 / np.arange(1, 301)).mean()))
    assert summary["scores"]["test"]["mrr"] > 2 * chance


def test_links_are_ranked_among_nodes_of_a_file(
    graph: GraphDirectory, parts: dict[int, Path], tmp_path: Path
) -> None:
    generator, files = np.random.default_rng(3), {}
    for split in ("val", "test"):
        files[split] = str(tmp_path / f"{split}.npy")
        np.save(files[split], generator.integers(0, 300, (graph.schema.splits[split], 2, 20)))
    values = make_values(parts[2], tmp_path / "run", epochs=1, dtype="float64")
    values["task"]["fixed_negatives"] = files
    hopper.train(values)
    rows = hopper.predict(tmp_path / "run", what="embeddings").values
    weights = hopper.load_model(tmp_path / "run").link_decoder.relations[0].detach().numpy()
    links, others, ranks = graph.links("test"), np.load(files["test"]), []
    for side, (known, true) in enumerate(((links.src, links.dst), (links.dst, links.src))):
        for link in range(links.count):
            scores = (rows[others[link, side]] * rows[known[link]] * weights).sum(1)
            own_score = (rows[true[link]] * rows[known[link]] * weights).sum()
            counts = others[link, side] != true[link]
            ranks.append(
                1
                + (counts & (scores > own_score)).sum()
                + (counts & (scores == own_score)).sum() / 2
            )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    expected = float((1 / np.array(ranks)).mean())
    assert summary["scores"]["test"]["mrr"] == pytest.approx(expected, rel=1e-6)
    chance = float((1 / np.arange(1, 22)).mean())
    assert summary["baselines"]["test"]["mrr"] == pytest.approx(chance)


def test_one_server_and_two_learn_the_same(
    trained_run: hopper.RunResult, parts: dict[int, Path], tmp_path: Path
) -> None:
    """With as many links an iteration, losses and scores agree up to rounding."""
    options = {"batch_size": 256, "engine": "model_centric"}
    on_one_server = hopper.train(make_values(parts[1], tmp_path / "run", **options))
    epochs_on_two, epochs_on_one = (
        [json.loads(line) for line in (Path(run.run_dir) / "epochs.jsonl").read_text().splitlines()]
        for run in (trained_run, on_one_server)
    )
    for epoch, expected in zip(epochs_on_two, epochs_on_one, strict=True):
        np.testing.assert_allclose(
            epoch["iteration_losses"], expected["iteration_losses"], rtol=1e-3
        )
        assert epoch["val"] == pytest.approx(expected["val"], rel=0.02)


def test_a_repeated_run_is_the_same(
    trained_run: hopper.RunResult, parts: dict[int, Path], tmp_path: Path
) -> None:
    """The bits are equal, even without the pipeline."""
    values = make_values(parts[2], tmp_path / "run", epochs=1)
    hopper.train(values | {"pipeline": {"depth": 0}})
    lines = (Path(trained_run.run_dir) / "epochs.jsonl").read_text().splitlines()
    repeated_lines = (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()
    assert (
        json.loads(lines[0])["iteration_losses"]
        == json.loads(repeated_lines[0])["iteration_losses"]
    )
    assert json.loads(lines[0])["val"] == json.loads(repeated_lines[0])["val"]
