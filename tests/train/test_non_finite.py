"""Runs whose loss or gradient is not finite: what they say, and how they end or go on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import hopper
from hopper.train.evaluate_links import _count_better
from hopper.train.results import best_first

NAN_ON_RANK_1 = {
    "engine": "zero_hop",
    "loss": "tests.engines.own_parts:NanOnce",
    "loss_options": {"rank": 1, "call": 8},
    "checkpoint_every": 1,
}


def read_strictly(file: Path) -> Any:
    """Read JSON that has no NaN or Infinity."""
    return json.loads(file.read_text(), parse_constant=pytest.fail)


def test_a_loss_that_is_nan_ends_the_run_and_the_run_can_go_on_without_that_update(runs):
    run = runs.try_to_train("nan", **NAN_ON_RANK_1)
    assert run.code == 1
    assert "the loss is nan on rank 1 (epoch 0, iteration 7): the run ends" in run.stderr
    assert run.checkpoint.name == "step-7.safetensors"
    assert f"the last checkpoint from before is {run.checkpoint};" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (run.run_dir / "summary.json").exists()

    # The loss is NaN at the eighth call of the resumed run too, in iteration 14.
    run = runs.train_to_end("nan", **NAN_ON_RANK_1, resume=True, on_nonfinite="skip")
    summary = read_strictly(run.run_dir / "summary.json")
    assert summary["left_out"] == summary["epochs"][1]["left_out"] == 1
    assert "1 updates left out" in run.stdout
    result = hopper.RunResult.open(run.run_dir)
    losses = [loss for epoch in result.epochs for loss in epoch.iteration_losses]
    assert torch.tensor(losses).isnan().nonzero()[:, 0].tolist() == [14]
    assert all(tensor.isfinite().all() for tensor in load_file(result.model_file).values())


def test_a_model_whose_predictions_are_nan_is_no_success(runs):
    """The last update is the bad one, so no later loss tells."""
    run = runs.try_to_train("last", learning_rate=1e30, iterations_per_epoch=1, epochs=1)
    assert run.code == 1
    assert "predictions of the validation split are nan (after epoch 0)" in run.stderr
    assert not (run.run_dir / "best.safetensors").exists()


def test_a_trial_that_diverges_ranks_last_and_the_others_go_on(runs):
    config = runs.config("swept nan", batch_size=10)
    words = ("--train.learning_rate=[1e30, 0.01]", "--train.gradient_norms=true")
    run = runs.call_to_end("swept nan", "sweep", str(config), *words)
    assert "trial 0: the loss is nan on ranks 0, 1 (epoch 0, iteration 1): stopped" in run.stdout
    summary = read_strictly(run.run_dir / "summary.json")
    assert summary["ranking"] == [1, 0]
    assert [trial["diverged"] is None for trial in summary["trials"]] == [False, True]
    first, second = (run.run_dir / f"trial-{number}" for number in (0, 1))
    assert len(first.joinpath("epochs.jsonl").read_text().splitlines()) == 1
    assert not (first / "best.safetensors").exists()
    epochs = read_strictly(second / "summary.json")["epochs"]
    assert [len(epoch["gradient_norms"]) for epoch in epochs] == [5, 5, 5]
    assert summary["epochs"][1]["gradient_norms"] == epochs[1]["gradient_norms"]


def test_float16_goes_on_after_an_overflow_and_resumes_with_the_same_bits(runs):
    train = {
        "autocast": "float16",
        "callbacks": ["tests.engines.own_parts:InfiniteOnce"],
        "checkpoint_every": 1000,
    }
    whole = runs.train_to_end("float16", **train, epochs=2)
    # The first gradients may overflow as well, until the scale has come down.
    count, expected = whole.epochs()[0]["left_out"], load_file(whole.checkpoint)
    assert count >= 1
    assert expected["loss_scale"][0] == 1024 / 2**count
    losses = whole.losses()
    whole.halt_after(whole.epochs()[0]["iterations"])
    resumed = runs.train_to_end("float16", **train, epochs=2, resume=True)
    tensors = load_file(resumed.checkpoint)
    assert expected.keys() == tensors.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, tensors[name]), name
    assert resumed.losses() == losses


def test_nan_is_never_the_best_score():
    nan = float("nan")
    for higher_is_better in (True, False):
        assert best_first({0: 0.1, 1: nan}, higher_is_better)[0] == 0
        assert best_first({0: nan, 1: 0.1}, higher_is_better)[0] == 1


def test_a_link_whose_scores_are_nan_has_no_rank():
    nan = float("nan")
    scores = torch.tensor([[1.0, 3.0, 2.0], [nan, 0.0, 0.0], [0.0, 0.0, 0.0]])
    better = _count_better(scores, torch.tensor([[2.0], [1.0], [nan]]))
    assert better[0] == 1.5
    assert better[1:].isnan().all()
