"""Merging decided from epoch times is recorded, replayed bit for bit, and survives resuming."""

from __future__ import annotations

from typing import Any

import pytest

from hopper.micrograph.merge import AdaptiveMerge
from hopper.train.results import EPOCHS_FILE

ADAPTIVE = ("--hop.merge=adaptive",)
EPOCHS = 4


@pytest.fixture(scope="module")
def decided(runs: Any) -> Any:
    """A run that examined how many of its two time steps to dissolve."""
    return runs.finished("decided", *ADAPTIVE, epochs=EPOCHS)


def assert_follows_its_times(epochs: list[dict[str, Any]], most: int) -> None:
    merge = AdaptiveMerge(most)
    for epoch in epochs:
        assert epoch["decisions"] == {"merge": merge.dissolve}, epoch["epoch"]
        merge.epoch_ended(epoch["typical_seconds"])
    assert merge.settled


def test_decisions_follow_the_epoch_times(decided: Any) -> None:
    epochs = decided.epochs()
    assert len(epochs) == EPOCHS
    assert [epoch["decisions"]["merge"] for epoch in epochs[:3]] == [0, 0, 1]
    assert_follows_its_times(epochs, most=1)


def test_a_replayed_run_equals_the_first(decided: Any, runs: Any) -> None:
    again = runs.finished("replayed", *ADAPTIVE, epochs=EPOCHS, replay=str(decided.run_dir))
    assert [e["decisions"] for e in again.epochs()] == [e["decisions"] for e in decided.epochs()]
    assert again.losses() == decided.losses()


def test_the_command_replays_too(decided: Any, runs: Any) -> None:
    again = runs.finished("told", "--replay", str(decided.run_dir), *ADAPTIVE, epochs=EPOCHS)
    assert again.losses() == decided.losses()


def test_a_resumed_run_goes_on_examining(runs: Any) -> None:
    runs.finished("examined", *ADAPTIVE, epochs=2, checkpoint_every=4)
    run = runs.finished("examined", *ADAPTIVE, epochs=EPOCHS, checkpoint_every=4, resume=True)
    assert_follows_its_times(run.epochs(), most=1)


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
