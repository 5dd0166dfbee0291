"""Merging decided from the times of iterations is recorded, replayed bit for bit, and survives
resuming."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hopper.micrograph.merge_number import MERGE, TRIED, MergeNumber
from hopper.train.results import EPOCHS_FILE
from hopper.train.tensor_file import read_facts

# So small batches that two epochs have enough iterations to compare.
ADAPTIVE = ("--hop.merge=adaptive", "--train.batch_size=2")
EPOCHS = 4


@pytest.fixture(scope="module")
def decided(runs: Any) -> Any:
    """A run that compared both numbers of steps that it can dissolve."""
    return runs.finished("decided", *ADAPTIVE, epochs=EPOCHS)


def assert_follows_its_times(epochs: list[dict[str, Any]]) -> None:
    number = MergeNumber.adaptive(1)
    for epoch in epochs:
        assert epoch["decisions"] == number.decisions(epoch["epoch"]), epoch["epoch"]
        seconds = epoch["iteration_seconds"]
        assert len(seconds) == epoch["measured_iterations"]
        first = epoch["iterations"] - epoch["measured_iterations"]
        number = number.after(epoch["epoch"], dict(enumerate(seconds, first)))


def test_decisions_follow_the_iterations_times(decided: Any) -> None:
    epochs = decided.epochs()
    assert len(epochs) == EPOCHS
    # Two epochs have as many pairs as it takes.
    compared = {MERGE: 0, TRIED: 1}
    assert [epoch["decisions"] for epoch in epochs[:3]] == [{MERGE: 0}, compared, compared]
    assert_follows_its_times(epochs)


def test_a_replayed_run_equals_the_first(decided: Any, runs: Any) -> None:
    again = runs.finished("replayed", "--replay", str(decided.run_dir), *ADAPTIVE, epochs=EPOCHS)
    assert [e["decisions"] for e in again.epochs()] == [e["decisions"] for e in decided.epochs()]
    assert again.losses() == decided.losses()


def test_an_older_run_tried_no_other_number(decided: Any, runs: Any) -> None:
    folder = decided.run_dir.parent / "older"
    folder.mkdir()
    lines = [epoch | {"decisions": {MERGE: 1}} for epoch in decided.epochs()]
    (folder / EPOCHS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = runs.finished("after-an-older", *ADAPTIVE, epochs=2, replay=str(folder))
    assert [epoch["decisions"] for epoch in again.epochs()] == [{MERGE: 1}] * 2


def test_a_run_resumed_within_an_epoch_that_compares_is_replayed(runs: Any) -> None:
    options = {"epochs": 4, "checkpoint_every": 4}
    run = runs.train("resumed-comparing", *ADAPTIVE, **options)
    file, kept = run.run_dir, b""

    def is_comparing() -> bool:
        nonlocal file, kept
        found = run.checkpoint()
        if found is None:
            return False
        file, kept = found
        copy = run.run_dir.with_name("comparing-copy")
        copy.write_bytes(kept)
        place = read_facts(copy)["progress"]
        return bool(place["epoch"] == 2 and place["iteration"] > 0)

    run.await_condition(is_comparing, "checkpoint within the third epoch")
    assert run.finish() == 0, run.stderr
    run.go_back_to(file, kept)
    resumed = runs.finished("resumed-comparing", *ADAPTIVE, resume=True, **options)
    epochs = resumed.epochs()
    assert epochs[2]["decisions"] == {MERGE: 0, TRIED: 1}
    assert epochs[2]["measured_iterations"] < epochs[2]["iterations"]
    assert_follows_its_times(epochs)
    again = runs.finished("comparing-again", *ADAPTIVE, epochs=4, replay=str(resumed.run_dir))
    assert again.losses() == resumed.losses()


def test_a_run_of_another_engine_cannot_be_replayed(decided: Any, runs: Any) -> None:
    refused = runs.train("refused", replay=str(decided.run_dir), engine="zero_hop")
    assert refused.finish() == 1
    assert "expected epochs of engine zero_hop on 2 ranks, found [('hop', 2)]" in refused.stderr
    assert not (refused.run_dir / EPOCHS_FILE).exists()


def test_too_many_steps_are_refused(runs: Any) -> None:
    refused = runs.train("merged", "--hop.merge=2")
    assert refused.finish() == 1
    assert "hop.merge: expected at most 1, one less than the 2 ranks" in refused.stderr
    assert not (refused.run_dir / EPOCHS_FILE).exists()
