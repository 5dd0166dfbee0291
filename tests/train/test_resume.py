"""A run that was killed goes on from its last checkpoint, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

EVERY = 4


def progress_in(file: Path) -> dict[str, Any]:
    with safe_open(str(file), framework="numpy") as checkpoint:
        return dict(json.loads(checkpoint.metadata()["facts"])["progress"])


@pytest.fixture(scope="module")
def killed(runs: Any) -> tuple[Any, dict[str, Any]]:
    """A run ended by SIGKILL, with a checkpoint from the middle of an epoch left behind.

    Returns the run and the place in it that the checkpoint holds.
    """
    run = runs.train("resumed", epochs=10_000, checkpoint_every=EVERY)
    file, kept = run.run_dir, b""

    def in_an_epoch() -> bool:
        nonlocal file, kept
        found = run.checkpoint()
        if found is None:
            return False
        file, kept = found
        copy = run.run_dir.with_name("checkpoint-copy")
        copy.write_bytes(kept)
        place = progress_in(copy)
        return place["epoch"] >= 2 and place["iteration"] > 0

    run.await_condition(in_an_epoch, "checkpoint within an epoch")
    run.process.kill()
    run.process.wait()
    run.assert_nothing_remains(limit=20.0)
    # The ranks may have come a few iterations further until they, too, were ended.
    run.go_back_to(file, kept)
    return run, progress_in(file)


def test_a_killed_launcher_leaves_no_process(killed: tuple[Any, dict[str, Any]]) -> None:
    run, _ = killed
    assert run.members() == []


def test_a_resumed_run_equals_one_that_was_never_interrupted(
    killed: tuple[Any, dict[str, Any]], runs: Any
) -> None:
    run, place = killed
    # So it goes on within an epoch, and there is one after that.
    epochs = max(len(run.epochs()), place["epoch"] + 1) + 1
    resumed = runs.finished("resumed", epochs=epochs, checkpoint_every=EVERY, resume=True)
    whole = runs.finished("uninterrupted", epochs=epochs)

    assert len(whole.losses()) == epochs
    assert resumed.losses() == whole.losses()
    assert [epoch["val"] for epoch in resumed.epochs()] == [e["val"] for e in whole.epochs()]
    assert resumed.summary()["scores"] == whole.summary()["scores"]
    best = "best.safetensors"
    assert (resumed.run_dir / best).read_bytes() == (whole.run_dir / best).read_bytes()


def test_a_checkpoint_of_another_configuration_is_refused(
    killed: tuple[Any, dict[str, Any]], runs: Any
) -> None:
    run, _ = killed
    before = run.checkpoint()
    refused = runs.train(
        "resumed", "--model.hidden", "9", epochs=9, checkpoint_every=EVERY, resume=True
    )
    assert refused.finish() == 1
    refused.assert_nothing_remains()
    assert "cannot resume: model.hidden was 8, now it is 9" in refused.stderr
    assert run.checkpoint() == before
