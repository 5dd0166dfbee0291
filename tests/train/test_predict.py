"""``hopper predict``: what a finished run's model says of all nodes, whatever happens meanwhile."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import hopper
from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph
from hopper.predict.launch import predict_into
from hopper.predict.order import Order, PredictionRequest
from hopper.predict.parts import Part, Predictions, write_part
from hopper.tasks import Target

RGCN = ("--model.name=rgcn", "--learnable.dim=4", "--train.dtype=float64")


def predicted(runs: Any, run_dir: Path, out: Path, *words: str) -> Predictions:
    """``hopper predict`` that has ended well."""
    run = runs.start(
        [*runs.hopper, "predict", str(run_dir), "--out", str(out), *words],
        out.name,
    )
    assert run.finish() == 0, run.stdout + run.stderr
    return Predictions.open(out)


def test_predictions_score_as_the_run_did(
    reference: Any, runs: Any, community_graph: GraphDirectory, tmp_path: Path
) -> None:
    """On the graph that it was trained on, and on the same one over other servers."""
    scores = reference.summary()["scores"]
    labels, count = community_graph.labels("item"), community_graph.schema.node_types["item"].count
    found = predicted(runs, reference.run_dir, tmp_path / "labels")
    np.testing.assert_array_equal(found.ids, np.arange(count))
    for split in ("val", "test"):
        nodes = community_graph.split(split)
        assert float((found.values[nodes] == labels[nodes]).mean()) == scores[split]["accuracy"]
    # Both ranks counted the claims of their nodes.
    by_class = reference.summary()["by_class"]["test"]
    claims, actual = found.values[nodes], labels[nodes]
    for place, number in enumerate(map(int, by_class["class"])):
        right = ((claims == number) & (actual == number)).sum()
        assert by_class["support"][place] == (actual == number).sum()
        assert by_class["recall"][place] == pytest.approx(right / (actual == number).sum())
        if by_class["precision"][place] is not None:
            assert by_class["precision"][place] == pytest.approx(right / (claims == number).sum())
    assert sum(by_class["support"]) == nodes.size
    assert not (tmp_path / "labels" / "_work").exists()
    other = tmp_path / "three servers"
    partition_graph(community_graph, other, 3, "random", seed=5)
    words = ("--what=logits", "--format=npy", "--nodes=test", "--data.partitioned", str(other))
    logits = predicted(runs, reference.run_dir, tmp_path / "logits", *words)
    np.testing.assert_array_equal(logits.ids, community_graph.split("test"))
    np.testing.assert_array_equal(logits.values.argmax(1), found.values[logits.ids])
    # Nothing is left to do: nothing is started, and the same comes back.
    asked = PredictionRequest("logits", "test", "npy", overrides=("--data.partitioned", str(other)))
    assert predict_into(reference.run_dir, tmp_path / "logits", asked) == logits.ids.size
    # Another graph, or another number of ranks, is another prediction.
    for word in ("--data.partitioned=" + str(other), "--cluster.ranks_per_server=2"):
        with pytest.raises(hopper.RequestError, match="labels: holds a prediction with"):
            predict_into(
                reference.run_dir, tmp_path / "labels", PredictionRequest(overrides=(word,))
            )


def test_a_loaded_model_says_the_same(
    reference: Any, runs: Any, community_graph: GraphDirectory, tmp_path: Path
) -> None:
    """Nodes of a file, in another order; embeddings are what the last layer reads."""
    nodes = np.array([7, 3, 11])
    np.save(tmp_path / "nodes.npy", nodes)
    words = ("--what=embeddings", "--format=npy", "--nodes", str(tmp_path / "nodes.npy"))
    found = predicted(runs, reference.run_dir, tmp_path / "embeddings", *words)
    np.testing.assert_array_equal(found.ids, np.sort(nodes))
    model = hopper.load_model(reference.run_dir)
    config = hopper.RunResult.open(reference.run_dir).config
    parts = hopper.PartitionedGraph.open(config.data.partitioned)
    whole = hopper.make_config(config.model_dump(), ["--sampler.fanouts=[-1, -1]"])
    sampler = hopper.make_sampler(hopper.Request(whole, parts))
    roots = parts.global_ids("item")[found.ids]
    subgraph = sampler.sample(roots, 0, 0)
    rows = community_graph.features("item")[parts.original_ids("item")[subgraph.nodes["item"]]]
    with torch.no_grad():
        hidden = model.step(0, subgraph.blocks()[0], torch.from_numpy(rows))
    np.testing.assert_allclose(found.values, hidden[:3].numpy(), atol=1e-5)


def test_learned_rows_go_with_the_model(
    typed_runs: Any, papers: GraphDirectory, tmp_path: Path
) -> None:
    """Also to a graph that is divided by relation."""
    run = typed_runs.finished("to predict", *RGCN, epochs=2, engine="zero_hop")
    found = predicted(typed_runs, run.run_dir, tmp_path / "labels")
    nodes = papers.split("val")
    score = float((found.values[nodes] == papers.labels("paper")[nodes]).mean())
    assert score == run.summary()["scores"]["val"]["accuracy"]
    hopper.divide_graph(papers, tmp_path / "by relation", 2, "meta", layers=2)
    words = ("--data.partitioned", str(tmp_path / "by relation"))
    again = predicted(typed_runs, run.run_dir, tmp_path / "again", *words)
    np.testing.assert_array_equal(again.ids, np.arange(90))
    np.testing.assert_array_equal(again.values, found.values)
    assert {file.name for file in (tmp_path / "again").glob("part-*")} == {
        "part-00000-00000.parquet",
        "part-00000-00001.parquet",
    }


def test_rounded_features_are_told_of(
    reference: Any, runs: Any, community_graph: GraphDirectory, tmp_path: Path
) -> None:
    """In the words of training, once, whatever the number of ranks."""
    small = tmp_path / "small"
    partition_graph(community_graph, small, 2, "random", feature_dtypes=["int8"])
    words = ["--out", str(tmp_path / "out"), "--data.partitioned", str(small)]
    run = runs.start([*runs.hopper, "predict", str(reference.run_dir), *words], "rounded")
    assert run.finish() == 0, run.stdout + run.stderr
    assert run.stdout.count("features of item: approximate, rounded to int8") == 1


MANY_PIECES = ("--what=logits", "--format=npy", "--memory=128")


@pytest.fixture(scope="module")
def undisturbed(
    reference: Any, runs: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Predictions]:
    """The folder of a prediction in many pieces, and what was predicted."""
    folder = tmp_path_factory.mktemp("undisturbed") / "whole"
    return folder, predicted(runs, reference.run_dir, folder, *MANY_PIECES)


@pytest.mark.parametrize("target", ["launcher", "rank"])
def test_a_killed_prediction_goes_on(
    target: str,
    undisturbed: tuple[Path, Predictions],
    reference: Any,
    runs: Any,
    tmp_path: Path,
) -> None:
    """With kill -9, among many pieces: the files are those of one that nobody disturbed."""
    folder, whole = undisturbed
    out = tmp_path / "killed"
    command = [
        sys.executable,
        "-m",
        "hopper.cli",
        "predict",
        str(reference.run_dir),
        "--out",
        str(out),
        *MANY_PIECES,
    ]
    run = runs.start(command, "killed")
    work = out / "_work"
    run.await_condition(lambda: len(list(work.glob("rank-0/0/*.json"))) > 1, "a second table")
    victim = run.process if target == "launcher" else _rank_of(out)
    victim.send_signal(signal.SIGKILL)
    assert run.finish() != 0
    deadline = time.monotonic() + 20
    while _processes_of(out):
        assert time.monotonic() < deadline, "left behind"
        time.sleep(0.05)
    assert not list(out.glob("part-*"))
    found = predicted(runs, reference.run_dir, out, *MANY_PIECES)
    np.testing.assert_array_equal(found.values, whole.values)
    for file in sorted(folder.glob("*.npy")):
        assert (out / file.name).read_bytes() == file.read_bytes()


def _processes_of(out: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(out / "_work") in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]


def _rank_of(out: Path) -> psutil.Process:
    return next(each for each in _processes_of(out) if "hopper.predict" in each.cmdline())


def test_what_cannot_be_predicted_is_refused_first(
    reference: Any, community_graph: GraphDirectory, tmp_path: Path
) -> None:
    def refused(match: str, **asked: Any) -> None:
        out = asked.pop("out", tmp_path / "new")
        with pytest.raises((hopper.RequestError, hopper.ConfigError), match=match):
            predict_into(reference.run_dir, out, PredictionRequest(**asked))
        assert not (tmp_path / "new").exists()

    refused(r"--nodes later: expected all, one of the splits", nodes="later")
    np.save(tmp_path / "far.npy", np.array([0, 10**6]))
    refused(r"far\.npy: expected original ids of item in \[0", nodes=str(tmp_path / "far.npy"))
    np.save(tmp_path / "twice.npy", np.array([4, 4]))
    refused("expected distinct ids; 1 of 2", nodes=str(tmp_path / "twice.npy"))
    refused("--memory: expected a number and a unit", memory="much")
    refused("model: belongs to the model as it was trained", overrides=("--model.hidden=9",))
    refused("--what: expected one of labels", what="classes")
    refused("--format: expected one of parquet, npy", format="csv")
    refused("unknown key", overrides=("--data.place=9",))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    refused("full: expected a new or an empty folder", out=tmp_path / "full")
    with pytest.raises(hopper.RequestError, match="expected the folder of a finished run"):
        predict_into(tmp_path, tmp_path / "new", PredictionRequest())
    altered = tmp_path / "altered"
    shutil.copytree(reference.run_dir, altered)
    (altered / "best.safetensors").unlink()
    with pytest.raises(hopper.RequestError, match="the run has no model"):
        predict_into(altered, tmp_path / "new", PredictionRequest())


def order(what: Any, kind: Any = "npy") -> Order:
    return Order("", "", what, "all", "", "", 1, "cpu", kind, "1M")


def test_labels_of_every_kind() -> None:
    rows = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])

    def finished(what: Any, kind: Any, given: torch.Tensor = rows) -> Any:
        return order(what).finish(given, kind).tolist()

    assert finished("labels", "class") == [1, 0]
    assert finished("labels", "multi_hot") == [[0, 1], [1, 0]]
    assert finished("labels", "float", rows[:, :1]) == [-1.0, 3.0]
    assert finished("labels", "float") == rows.tolist()
    np.testing.assert_allclose(np.sum(finished("probabilities", "class"), 1), 1, rtol=1e-6)
    assert finished("probabilities", "multi_hot") == torch.sigmoid(rows).tolist()
    with pytest.raises(hopper.RequestError, match="--what probabilities: the labels are values"):
        order("probabilities").check(Target("node", "float", 2, 2), in_time=False)


@pytest.mark.parametrize("kind", ["parquet", "npy"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (0, 3), (0,)])
def test_parts_are_read_as_they_were_written(
    kind: Any, shape: tuple[int, ...], tmp_path: Path
) -> None:
    from hopper.predict.parts import _read

    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    part = Part.of(np.array([4, 9, 1, 0, 7])[: shape[0]])
    file = tmp_path / f"part-0.{kind}"
    pieces = ((piece, values[places]) for piece, places in part.pieces())
    write_part(file, part, "logits", pieces, values[:0])
    found = _read(file, order("logits", kind))
    np.testing.assert_array_equal(found.ids, part.ids)
    np.testing.assert_array_equal(found.values, values[part.order])
    assert found.values.dtype == np.float32
    assert found.names is None
