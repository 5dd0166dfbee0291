"""Adaptive merging: decisions from the times of iterations are recorded, replayed and resumed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hopper.micrograph.merge_number import MERGE, TRIED, MergeNumber
from hopper.train.results import EPOCHS_FILE

# The batches are so small that two epochs have enough iterations to compare.
ADAPTIVE = ("--hop.merge=adaptive", "--train.batch_size=2")
EPOCHS = 4


@pytest.fixture(scope="module")
def adaptive_run(runs: Any) -> Any:
    """A run that compared both numbers of steps that it can dissolve."""
    return runs.train_to_end("decided", *ADAPTIVE, epochs=EPOCHS)


def assert_follows_its_times(epochs: list[dict[str, Any]]) -> None:
    number = MergeNumber.adaptive(1)
    for epoch in epochs:
        assert epoch["decisions"] == number.decisions(epoch["epoch"]), epoch["epoch"]
        seconds = epoch["iteration_seconds"]
        assert len(seconds) == epoch["measured_iterations"]
        first = epoch["iterations"] - epoch["measured_iterations"]
        number = number.after(epoch["epoch"], dict(enumerate(seconds, first)))


def test_decisions_follow_the_iterations_times(adaptive_run: Any) -> None:
    epochs = adaptive_run.epochs()
    assert len(epochs) == EPOCHS
    # Two epochs have as many pairs as it takes.
    compared = {MERGE: 0, TRIED: 1}
    assert [epoch["decisions"] for epoch in epochs[:3]] == [{MERGE: 0}, compared, compared]
    assert_follows_its_times(epochs)


def test_a_replayed_run_equals_the_first(adaptive_run: Any, runs: Any) -> None:
    replayed = runs.train_to_end(
        "replayed", "--replay", str(adaptive_run.run_dir), *ADAPTIVE, epochs=EPOCHS
    )
    assert [epoch["decisions"] for epoch in replayed.epochs()] == [
        epoch["decisions"] for epoch in adaptive_run.epochs()
    ]
    assert replayed.losses() == adaptive_run.losses()


def test_a_run_of_an_older_version_is_replayed(adaptive_run: Any, runs: Any) -> None:
    folder = adaptive_run.run_dir.parent / "older"
    folder.mkdir()
    lines = [epoch | {"decisions": {MERGE: 1}} for epoch in adaptive_run.epochs()]
    (folder / EPOCHS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    replayed = runs.train_to_end("after-an-older", *ADAPTIVE, epochs=2, replay=str(folder))
    assert [epoch["decisions"] for epoch in replayed.epochs()] == [{MERGE: 1}] * 2


def test_a_run_resumed_in_a_comparing_epoch_can_be_replayed(runs: Any) -> None:
    # Of 21 iterations an epoch, in the third one.
    options = {"checkpoint_every": 50}
    run = runs.train_to_end("resumed-comparing", *ADAPTIVE, epochs=3, **options)
    run.halt_after(50)
    resumed = runs.train_to_end("resumed-comparing", *ADAPTIVE, epochs=4, resume=True, **options)
    epochs = resumed.epochs()
    assert epochs[2]["decisions"] == {MERGE: 0, TRIED: 1}
    assert epochs[2]["measured_iterations"] < epochs[2]["iterations"]
    assert_follows_its_times(epochs)
    replayed = runs.train_to_end(
        "comparing-again", *ADAPTIVE, epochs=4, replay=str(resumed.run_dir)
    )
    assert replayed.losses() == resumed.losses()


def test_a_run_of_another_engine_cannot_be_replayed(adaptive_run: Any, runs: Any) -> None:
    refused = runs.try_to_train("refused", replay=str(adaptive_run.run_dir), engine="zero_hop")
    assert refused.code == 1
    assert "expected epochs of engine zero_hop on 2 ranks, found [('hop', 2)]" in refused.stderr
    assert not (refused.run_dir / EPOCHS_FILE).exists()


def test_too_many_steps_are_refused(runs: Any) -> None:
    refused = runs.try_to_train("merged", "--hop.merge=2")
    assert refused.code == 1
    assert "hop.merge: expected at most 1, one less than the 2 ranks" in refused.stderr
    assert not (refused.run_dir / EPOCHS_FILE).exists()
