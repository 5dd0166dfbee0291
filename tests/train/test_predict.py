"""``hopper predict``: predictions of a finished run's model, also after interruptions."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopper
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.inference import split_rows
from hopper.partition import partition_graph
from hopper.predict.launch import predict_into
from hopper.predict.parts import Predictions, write_part
from hopper.predict.request import PredictionRequest
from hopper.tasks import Target

from .conftest import read_neighbourhood

RGCN = ("--model.name=rgcn", "--learnable.dim=4", "--train.dtype=float64")


def run_predict(runs: Any, run_dir: Path, out: Path, *words: str) -> Predictions:
    """Run ``hopper predict`` and return what it wrote; fails unless it exits with 0."""
    runs.call_to_end(out.name, "predict", str(run_dir), "--out", str(out), *words)
    return Predictions.open(out)


def test_predictions_have_the_scores_of_the_run(reference, runs, community_graph, tmp_path):
    """The graph is the one of training, then the same graph on three servers."""
    scores = reference.summary()["scores"]
    labels, count = community_graph.labels("item"), community_graph.schema.node_types["item"].count
    predictions = run_predict(runs, reference.run_dir, tmp_path / "labels")
    np.testing.assert_array_equal(predictions.ids, np.arange(count))
    for split in ("val", "test"):
        nodes = community_graph.split(split)
        is_right = predictions.values[nodes] == labels[nodes]
        assert float(is_right.mean()) == scores[split]["accuracy"]
    # Both ranks counted the claims of their nodes.
    by_class = reference.summary()["by_class"]["test"]
    claims, actual = predictions.values[nodes], labels[nodes]
    for index, class_id in enumerate(map(int, by_class["class"])):
        right = ((claims == class_id) & (actual == class_id)).sum()
        assert by_class["support"][index] == (actual == class_id).sum()
        assert by_class["recall"][index] == pytest.approx(right / (actual == class_id).sum())
        if by_class["precision"][index] is not None:
            assert by_class["precision"][index] == pytest.approx(right / (claims == class_id).sum())
    assert sum(by_class["support"]) == nodes.size
    assert not (tmp_path / "labels" / "_work").exists()
    three_servers = tmp_path / "three servers"
    partition_graph(community_graph, three_servers, 3, "random", seed=5)
    divided = "--data.partitioned", str(three_servers)
    words = ("--what=logits", "--format=npy", "--nodes=test", *divided)
    logits = run_predict(runs, reference.run_dir, tmp_path / "logits", *words)
    np.testing.assert_array_equal(logits.ids, community_graph.split("test"))
    np.testing.assert_array_equal(logits.values.argmax(1), predictions.values[logits.ids])
    # Nothing is left to do, so no process is started.
    request = PredictionRequest("logits", "test", "npy", overrides=divided)
    assert predict_into(reference.run_dir, tmp_path / "logits", request) == logits.ids.size
    # Another graph, or another number of ranks, is another prediction.
    for overrides in (divided, ("--cluster.ranks_per_server=2",)):
        request = PredictionRequest(overrides=overrides)
        with pytest.raises(hopper.RequestError, match="labels: holds a prediction with"):
            predict_into(reference.run_dir, tmp_path / "labels", request)


def test_a_loaded_model_computes_the_same_embeddings(reference, runs, community_graph, tmp_path):
    """The nodes come from a file, unsorted. Embeddings are the rows that the last layer reads."""
    nodes = np.array([7, 3, 11])
    np.save(tmp_path / "nodes.npy", nodes)
    words = ("--what=embeddings", "--format=npy", "--nodes", str(tmp_path / "nodes.npy"))
    embeddings = run_predict(runs, reference.run_dir, tmp_path / "embeddings", *words)
    np.testing.assert_array_equal(embeddings.ids, np.sort(nodes))
    model = hopper.load_model(reference.run_dir)
    run_config = hopper.RunResult.open(reference.run_dir).config
    graph = hopper.PartitionedGraph.open(run_config.data.partitioned)
    blocks, rows = read_neighbourhood(run_config, graph, community_graph, embeddings.ids)
    with torch.no_grad():
        hidden = model.step(0, blocks[0], rows)
    np.testing.assert_allclose(embeddings.values, hidden[:3].numpy(), atol=1e-5)


def test_learnable_rows_are_used_for_predictions(typed_runs, graph_of, parts_of, tmp_path):
    """Also where the graph is divided by relation."""
    run = typed_runs.train_to_end("to predict", *RGCN, epochs=2, engine="zero_hop")
    labels = run_predict(typed_runs, run.run_dir, tmp_path / "labels")
    papers = graph_of("bare")
    nodes = papers.split("val")
    score = float((labels.values[nodes] == papers.labels("paper")[nodes]).mean())
    assert score == run.summary()["scores"]["val"]["accuracy"]
    words = ("--data.partitioned", str(parts_of("bare", "by relation")))
    labels_by_relation = run_predict(typed_runs, run.run_dir, tmp_path / "again", *words)
    np.testing.assert_array_equal(labels_by_relation.ids, np.arange(120))
    np.testing.assert_array_equal(labels_by_relation.values, labels.values)
    assert {file.name for file in (tmp_path / "again").glob("part-*")} == {
        "part-00000-00000.parquet",
        "part-00000-00001.parquet",
    }


def test_a_prediction_is_put_to_an_address(reference, runs, bucket, tmp_path):
    local = run_predict(runs, reference.run_dir, tmp_path / "here", "--what=probabilities")
    words = ["--what=probabilities", "--top=2", "--out", f"{bucket}/top"]
    run = runs.call_to_end("there", "predict", str(reference.run_dir), *words)
    assert f"{bucket}/top: {local.ids.size:,} probabilities" in run.stdout
    top = Predictions.open(f"{bucket}/top")
    np.testing.assert_array_equal(top.ids, local.ids)
    classes = np.argsort(-local.values, axis=1, kind="stable")[:, :2]
    assert top.classes is not None
    np.testing.assert_array_equal(top.classes, classes)
    np.testing.assert_array_equal(top.values, np.take_along_axis(local.values, classes, 1))
    # Nothing is left on this machine, and nothing to do. What is there is not written over.
    assert not list((reference.run_dir / "predictions").iterdir())
    request = PredictionRequest("probabilities", top=2)
    assert predict_into(reference.run_dir, f"{bucket}/top", request) == local.ids.size
    with pytest.raises(hopper.RequestError, match="/top: holds a prediction with what"):
        predict_into(reference.run_dir, f"{bucket}/top", PredictionRequest("labels"))
    with pytest.raises(hopper.RequestError, match="nosuch://me@host"):
        predict_into(reference.run_dir, "nosuch://me:secret@host/x", PredictionRequest())


def test_rounded_features_are_reported_once(reference, runs, community_graph, tmp_path):
    """The message is the one of training, printed once for all ranks."""
    small = tmp_path / "small"
    partition_graph(community_graph, small, 2, "random", feature_dtypes=["int8"])
    words = ["--out", str(tmp_path / "out"), "--data.partitioned", str(small)]
    run = runs.call_to_end("rounded", "predict", str(reference.run_dir), *words)
    assert run.stdout.count("features of item: approximate, rounded to int8") == 1


MANY_PIECES = ("--what=logits", "--format=npy", "--memory=128")


@pytest.fixture(scope="module")
def undisturbed_prediction(reference, runs, tmp_path_factory) -> tuple[Path, Predictions]:
    """The folder of a prediction in many pieces, and what was predicted."""
    folder = tmp_path_factory.mktemp("undisturbed") / "undisturbed"
    return folder, run_predict(runs, reference.run_dir, folder, *MANY_PIECES)


def test_a_killed_prediction_goes_on(undisturbed_prediction, reference, runs, tmp_path):
    """After kill -9 the next start goes on, and writes the same files as an undisturbed one."""
    folder, expected = undisturbed_prediction
    out = tmp_path / "killed"
    words = ["predict", str(reference.run_dir), "--out", str(out), *MANY_PIECES]
    # Its processes' command lines name the folder of the prediction.
    run = runs.start([*runs.hopper, *words], str(out))
    work = out / "_work"
    run.await_condition(lambda: len(list(work.glob("rank-0/0/*.json"))) > 1, "a second table")
    run.ranks()[0].kill()
    assert run.finish() != 0
    run.assert_nothing_remains(limit=20)
    assert not list(out.glob("part-*"))
    # One of the ranks has written its part.
    for name in ("ids-00000-00001.npy", "part-00000-00001.npy"):
        shutil.copy(folder / name, out)
    resumed = run_predict(runs, reference.run_dir, out, *MANY_PIECES)
    np.testing.assert_array_equal(resumed.values, expected.values)
    for file in sorted(folder.glob("*.npy")):
        assert (out / file.name).read_bytes() == file.read_bytes()


def test_bad_requests_are_refused_before_any_work(reference, community_graph, tmp_path):
    def assert_refused(match: str, **options: Any) -> None:
        out = options.pop("out", tmp_path / "new")
        with pytest.raises((hopper.RequestError, hopper.ConfigError), match=match):
            predict_into(reference.run_dir, out, PredictionRequest(**options))
        assert not (tmp_path / "new").exists()

    assert_refused(r"--nodes later: expected all, one of the splits", nodes="later")
    np.save(tmp_path / "far.npy", np.array([0, 10**6]))
    assert_refused(
        r"far\.npy: expected original ids of item in \[0", nodes=str(tmp_path / "far.npy")
    )
    # 0 is an id.
    np.save(tmp_path / "twice.npy", np.array([0, 4, 4]))
    assert_refused("expected distinct ids; 1 of 3", nodes=str(tmp_path / "twice.npy"))
    assert_refused("--memory: expected a number and a unit", memory="much")
    assert_refused("model: belongs to the model as it was trained", overrides=("--model.hidden=9",))
    assert_refused("--what: expected one of labels", what="classes")
    assert_refused("--format: expected one of parquet, npy", format="csv")
    assert_refused("--dtype: expected one of float32, float16", what="logits", dtype="int8")
    assert_refused("--dtype float16: labels have no fractions", dtype="float16")
    assert_refused("--top 2: expected probabilities of classes in parquet, given labels", top=2)
    assert_refused("--top 99: expected 1 to", what="probabilities", top=99)
    assert_refused("unknown key", overrides=("--data.place=9",))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    assert_refused("full: expected a new or an empty folder", out=tmp_path / "full")
    with pytest.raises(hopper.RequestError, match="expected the folder of a finished run"):
        predict_into(tmp_path, tmp_path / "new", PredictionRequest())
    altered = tmp_path / "altered"
    shutil.copytree(reference.run_dir, altered)
    (altered / "best.safetensors").unlink()
    with pytest.raises(hopper.RequestError, match="the run has no model"):
        predict_into(altered, tmp_path / "new", PredictionRequest())


def test_labels_of_every_kind():
    rows = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])

    def finish(what: Any, label_kind: Any, values: torch.Tensor = rows) -> Any:
        return PredictionRequest(what).finish(values, label_kind).tolist()

    assert finish("labels", "class") == [1, 0]
    assert finish("labels", "multi_hot") == [[0, 1], [1, 0]]
    assert finish("labels", "float", rows[:, :1]) == [-1.0, 3.0]
    assert finish("labels", "float") == rows.tolist()
    np.testing.assert_allclose(np.sum(finish("probabilities", "class"), 1), 1, rtol=1e-6)
    assert finish("probabilities", "multi_hot") == torch.sigmoid(rows).tolist()
    half = PredictionRequest("logits", dtype="float16")
    assert half.finish(rows, "class").dtype == np.float16
    with pytest.raises(hopper.RequestError, match="a value is 70000, which it cannot hold"):
        half.finish(torch.tensor([[7e4]]), "class")
    with pytest.raises(hopper.RequestError, match="--what probabilities: the labels are values"):
        PredictionRequest("probabilities").check(Target("node", "float", 2, 2), in_time=False)


@pytest.mark.parametrize("file_format", ["parquet", "npy"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (0, 3), (0,)])
def test_parts_are_read_as_they_were_written(file_format, shape, dtype, tmp_path):
    from hopper.predict.parts import _read

    values = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    ids = np.array([0, 1, 4, 7, 9])[: shape[0]]
    file = tmp_path / f"part-0.{file_format}"
    pieces = ((piece, values[piece]) for piece in split_rows(ids.size, 2))
    write_part(file, ids, "logits", pieces)
    read_back = _read(file, PredictionRequest("logits", format=file_format))
    np.testing.assert_array_equal(read_back["id"], ids)
    np.testing.assert_array_equal(read_back["logits"], values)
    assert read_back["logits"].dtype == dtype
    assert "name" not in read_back


def test_nodes_are_named_in_a_file(tmp_path):
    GraphDirectory.from_sql(
        tmp_path / "graph",
        nodes={"a": "SELECT 'n' || i AS id, i % 2 AS label, 'train' AS split FROM range(20) t(i)"},
        edges={"a/to/a": "SELECT 'n' || i AS src, 'n' || (i + 1) AS dst FROM range(19) t(i)"},
    )
    graph = hopper.divide_graph(str(tmp_path / "graph"), str(tmp_path / "parts"), 2)
    file = tmp_path / "nodes.txt"
    request = PredictionRequest("labels", str(file), node_type="a")
    file.write_text("n17\nn3\nn3\n")
    np.testing.assert_array_equal(request.node_ids(graph), np.sort(graph.global_ids("a")[[3, 17]]))
    file.write_text("n17\nnobody\n")
    with pytest.raises(RequestError, match=r"given 'nobody' \(1 of 2 are unknown\)"):
        request.node_ids(graph)
