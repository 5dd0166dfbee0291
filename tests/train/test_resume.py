"""A run computes the same bits when it resumes from a checkpoint or loses servers that have a
replica, or begins with what another one learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import hopper
from hopper.launch.run import prepare
from hopper.train.tensor_file import read_tensors
from tests.server_processes import Servers

CHECKPOINT_EVERY = 4
RGCN = "--model.name=rgcn"
MAPPED = (RGCN, "--learnable.storage=mmap", "--cache.policy=benefit", "--cache.size=30%")


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


def test_a_checkpoint_of_another_configuration_is_refused(
    killed_run: tuple[Any, dict[str, Any]], runs: Any
) -> None:
    run, _ = killed_run
    before = run.checkpoint()
    options = {"epochs": 9, "checkpoint_every": CHECKPOINT_EVERY, "resume": True}
    refused = runs.try_to_train("resumed", "--model.hidden", "9", **options)
    assert refused.code == 1
    assert "cannot resume: model.hidden was 8, now it is 9" in refused.stderr
    assert run.checkpoint() == before


def test_a_resumed_run_equals_one_that_was_never_interrupted(
    killed_run: tuple[Any, dict[str, Any]], runs: Any
) -> None:
    run, progress = killed_run
    # The resumed run goes on within an epoch, and another epoch follows.
    epochs = max(len(run.epochs()), progress["epoch"] + 1) + 1
    resumed = runs.train_to_end(
        "resumed", epochs=epochs, checkpoint_every=CHECKPOINT_EVERY, resume=True
    )
    whole = runs.train_to_end("uninterrupted", epochs=epochs)
    text = f"goes on at epoch {progress['epoch']}, iteration {progress['iteration']}"
    assert text in (resumed.run_dir / "ranks" / "0.log").read_text()
    assert len(whole.losses()) == epochs
    assert resumed.losses() == whole.losses()
    assert [epoch["val"] for epoch in resumed.epochs()] == [
        epoch["val"] for epoch in whole.epochs()
    ]
    assert resumed.summary()["scores"] == whole.summary()["scores"]
    best = "best.safetensors"
    assert (resumed.run_dir / best).read_bytes() == (whole.run_dir / best).read_bytes()


def test_a_resumed_run_with_rows_on_disk_has_the_losses_of_one_in_memory(typed_runs: Any) -> None:
    """It goes on from a checkpoint in the middle of its third epoch of five iterations."""
    options = {"engine": "zero_hop", "checkpoint_every": 12, "iterations_per_epoch": 5}
    on_disk = (*MAPPED, "--cache.decline=false")
    run = typed_runs.train_to_end("halted", *on_disk, epochs=3, **options)
    run.halt_after(12)
    resumed = typed_runs.train_to_end("halted", *on_disk, epochs=4, resume=True, **options)
    in_memory = typed_runs.train_to_end("in memory", RGCN, epochs=4, **options)
    assert len(in_memory.losses()) == 4
    assert resumed.losses() == in_memory.losses()
    assert [epoch["val"] for epoch in resumed.epochs()] == [
        epoch["val"] for epoch in in_memory.epochs()
    ]
    hits, misses = map(sum, zip(*resumed.epochs()[-1]["lookups"].values(), strict=True))
    assert hits > 0
    assert misses > 0


def test_a_cache_for_rows_that_are_in_memory_is_declined(typed_runs: Any) -> None:
    """The files of learnable rows are so small that the kernel keeps them in memory. Features of
    the other server are cached."""
    run = typed_runs.train_to_end("declined", *MAPPED, epochs=2, engine="zero_hop")
    assert "cache: declined for learnable rows: their files" in run.stdout
    assert set(run.epochs()[-1]["lookups"]) == {"paper"}
    hosted = (RGCN, "--learnable.storage=host", *MAPPED[2:])
    in_memory = typed_runs.train_to_end("in memory too", *hosted, epochs=2, engine="zero_hop")
    assert "declined for learnable rows: the model is in host memory as they are" in (
        in_memory.stdout
    )
    assert run.losses() == in_memory.losses()


def test_a_run_begins_with_parameters_and_rows_of_another(typed_runs: Any) -> None:
    """A run whose learning rate is almost 0 ends with the values that it began with."""
    words = (RGCN, "--learnable.dim=4", "--learnable.storage=mmap")
    first = typed_runs.train_to_end("first", *words, epochs=2, engine="zero_hop")
    unchanging = ("--train.learning_rate=1e-30", '--learnable.frozen=["author"]')
    init_from = f"--train.init_from={first.run_dir}"
    second = typed_runs.train_to_end(
        "again", *words, *unchanging, init_from, epochs=1, engine="model_centric"
    )
    expected, values = (read_tensors(run.run_dir / "best.safetensors") for run in (first, second))
    assert all(torch.equal(values[name], value) for name, value in expected.items())
    assert second.summary()["scores"]["val"] == first.summary()["scores"]["val"]
    rows = [hopper.RunResult.open(run.run_dir).load_learnable_rows() for run in (first, second)]
    assert torch.equal(rows[0]["author"], rows[1]["author"])


def test_an_unusable_run_to_begin_with_is_refused(
    reference: Any, runs: Any, tmp_path: Path
) -> None:
    file, finished = runs.config("not begun"), f"--train.init_from={reference.run_dir}"
    for words, match in (
        ([f"--train.init_from={tmp_path}"], "train.init_from: .*expected the folder of a finished"),
        ([finished, "--model.hidden=5"], "init_from: .*expected sh"),
    ):
        with pytest.raises(hopper.RequestError, match=match):
            prepare(hopper.load_config(file, words))


def test_a_run_with_lost_servers_has_the_same_losses(
    reference: Any, runs: Any, partitioned: Path, tmp_path: Path
) -> None:
    servers = Servers(tmp_path)
    pairs = [[servers.start(partitioned, server) for _ in range(2)] for server in range(2)]
    addresses = json.dumps([[server.address for server in pair] for pair in pairs])
    run = runs.train("replicas", "--cluster.servers", addresses)
    run.await_epochs(1)
    lost_servers = [pair[number] for number, pair in enumerate(pairs)]
    for server in lost_servers:
        server.process.kill()
        server.process.wait(10)
    # They do not end with the exit code of servers that are asked to.
    servers.forget(lost_servers)
    assert run.finish() == 0, run.stdout + run.stderr
    run.assert_nothing_remains()
    servers.stop()
    assert run.losses() == reference.losses()
