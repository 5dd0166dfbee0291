"""A killed run resumes from its last checkpoint, and computes the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

CHECKPOINT_EVERY = 4


def progress_in(file: Path) -> dict[str, Any]:
    with safe_open(str(file), framework="numpy") as checkpoint:
        return dict(json.loads(checkpoint.metadata()["facts"])["progress"])


@pytest.fixture(scope="module")
def killed_run(runs: Any) -> tuple[Any, dict[str, Any]]:
    """A run ended by SIGKILL, with a checkpoint from the middle of an epoch left behind.

    Returns the run and the progress that the checkpoint holds.
    """
    run = runs.train("resumed", epochs=10_000, checkpoint_every=CHECKPOINT_EVERY)
    file, content = run.run_dir, b""

    def in_an_epoch() -> bool:
        nonlocal file, content
        checkpoint = run.checkpoint()
        if checkpoint is None:
            return False
        file, content = checkpoint
        copy = run.run_dir.with_name("checkpoint-copy")
        copy.write_bytes(content)
        progress = progress_in(copy)
        return progress["epoch"] >= 2 and progress["iteration"] > 0

    run.await_condition(in_an_epoch, "checkpoint within an epoch")
    run.process.kill()
    run.process.wait()
    run.assert_nothing_remains(limit=20.0)
    # The ranks may have trained a few more iterations before they ended too.
    run.go_back_to(file, content)
    return run, progress_in(file)


def test_a_killed_launcher_leaves_no_process(killed_run: tuple[Any, dict[str, Any]]) -> None:
    run, _ = killed_run
    assert run.members() == []


def test_a_resumed_run_equals_one_that_was_never_interrupted(
    killed_run: tuple[Any, dict[str, Any]], runs: Any
) -> None:
    run, progress = killed_run
    # The resumed run goes on within an epoch, and another epoch follows.
    epochs = max(len(run.epochs()), progress["epoch"] + 1) + 1
    resumed = runs.train_to_end(
        "resumed", epochs=epochs, checkpoint_every=CHECKPOINT_EVERY, resume=True
    )
    uninterrupted = runs.train_to_end("uninterrupted", epochs=epochs)

    assert (
        f"goes on at epoch {progress['epoch']}, iteration {progress['iteration']}"
        in (resumed.run_dir / "ranks" / "0.log").read_text()
    )
    assert len(uninterrupted.losses()) == epochs
    assert resumed.losses() == uninterrupted.losses()
    assert [epoch["val"] for epoch in resumed.epochs()] == [
        epoch["val"] for epoch in uninterrupted.epochs()
    ]
    assert resumed.summary()["scores"] == uninterrupted.summary()["scores"]
    best = "best.safetensors"
    assert (resumed.run_dir / best).read_bytes() == (uninterrupted.run_dir / best).read_bytes()


def test_a_checkpoint_of_another_configuration_is_refused(
    killed_run: tuple[Any, dict[str, Any]], runs: Any
) -> None:
    run, _ = killed_run
    before = run.checkpoint()
    refused = runs.try_to_train(
        "resumed", "--model.hidden", "9", epochs=9, checkpoint_every=CHECKPOINT_EVERY, resume=True
    )
    assert refused.code == 1
    assert "cannot resume: model.hidden was 8, now it is 9" in refused.stderr
    assert run.checkpoint() == before
