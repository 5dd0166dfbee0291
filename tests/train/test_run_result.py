"""``hopper.train`` trains the run of the command line, and its result loads the model."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import hopper
from hopper.train.tensor_file import read_tensors

from .conftest import read_neighbourhood


@pytest.fixture
def reference_result(reference) -> hopper.RunResult:
    return hopper.RunResult.open(reference.run_dir)


def test_training_from_python_is_the_same_run(reference, runs):
    """With the same seed, the losses have the same bits."""
    result = hopper.train(json.loads(runs.config("from-python").read_text()))
    assert result.run_dir == reference.run_dir.with_name("from-python")
    assert [epoch.iteration_losses for epoch in result.epochs] == reference.losses()
    assert hopper.RunResult.open(result.run_dir).summary == result.summary


def test_a_result_shows_what_the_run_wrote(reference_result, reference):
    result, summary = reference_result, reference.summary()
    assert [vars(epoch) for epoch in result.epochs] == reference.epochs()
    assert result.epochs[0].bytes["feature"] > 0
    scores = {split: scores["accuracy"] for split, scores in summary["scores"].items()}
    assert result.metrics == {"accuracy": scores}
    assert (result.engine, result.is_exact, result.ranks) == ("hop", True, 2)
    assert result.best_epoch == summary["best_epoch"]
    assert result.config.model.hidden == 8
    assert [file.name for file in result.span_files] == ["rank-0.jsonl", "rank-1.jsonl"]
    assert result.epochs_file.is_file()
    assert result.checkpoint_file is None
    assert (result.trials, result.ranking, result.load_learnable_rows()) == ([], [], {})


def test_the_loaded_model_is_the_one_that_was_scored(
    reference_result, community_graph, parts, tmp_path
):
    """It is loaded from a copy of the run folder, whose graph no longer exists."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(reference_result.run_dir, folder)
    values = json.loads((folder / "config.json").read_text())
    values["data"]["partitioned"] = "gone"
    (folder / "config.json").write_text(json.dumps(values))
    moved = hopper.RunResult.open(folder)

    model = moved.load_model()
    assert not model.training
    graph, nodes = hopper.PartitionedGraph.open(parts), community_graph.split("test")
    with torch.no_grad():
        logits = model(*read_neighbourhood(moved.config, graph, community_graph, nodes))
    score = float((logits.argmax(-1).numpy() == community_graph.labels("item")[nodes]).mean())
    assert score == pytest.approx(reference_result.metrics["accuracy"]["test"], abs=1e-12)


def test_a_folder_without_a_finished_run_or_whole_model_is_refused(reference_result, tmp_path):
    with pytest.raises(hopper.RequestError, match=r"it has no summary\.json"):
        hopper.RunResult.open(tmp_path)
    folder = Path(shutil.copytree(reference_result.run_dir, tmp_path / "altered"))
    content = bytearray((folder / "best.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "best.safetensors").write_bytes(content)
    with pytest.raises(hopper.RequestError, match="altered since it was written"):
        hopper.RunResult.open(folder).load_model()


def test_without_evaluation_the_last_model_is_loaded(runs):
    run = runs.train_to_end("never-scored", evaluate_every=0, epochs=1, checkpoint_every=9)
    result = hopper.RunResult.open(run.run_dir)
    assert (result.metrics, result.best_epoch) == ({"accuracy": {}}, None)
    assert result.config.train.evaluate_every == 0
    assert result.checkpoint_file is not None
    last = read_tensors(result.checkpoint_file)
    trained = result.load_model().state_dict()
    assert trained
    for key, value in trained.items():
        assert torch.equal(value, last[f"model.{key}"]), key
