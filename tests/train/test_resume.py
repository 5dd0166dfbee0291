"""A run computes the same bits when it resumes from a checkpoint, and it begins with what another
one learned."""

import pytest
import torch

import hopper
from hopper.launch.run import prepare
from hopper.train.tensor_file import read_tensors

RGCN = "--model.name=rgcn"
MAPPED = (RGCN, "--learnable.storage=mmap", "--cache.policy=benefit", "--cache.size=30%")


def test_a_resumed_run_with_rows_on_disk_has_the_losses_of_one_in_memory(typed_runs):
    """It goes on from a checkpoint in the middle of its third epoch of five iterations."""
    options = {"engine": "zero_hop", "checkpoint_every": 12, "iterations_per_epoch": 5}
    on_disk = (*MAPPED, "--cache.decline=false")
    run = typed_runs.train_to_end("halted", *on_disk, epochs=3, **options)
    run.halt_after(12)
    resumed = typed_runs.train_to_end("halted", *on_disk, epochs=4, resume=True, **options)
    in_memory = typed_runs.train_to_end("in memory", RGCN, epochs=4, **options)
    text = "goes on at epoch 2, iteration 2"
    assert text in (resumed.run_dir / "ranks" / "0.log").read_text()
    assert len(in_memory.losses()) == 4
    assert resumed.losses() == in_memory.losses()
    assert [epoch["val"] for epoch in resumed.epochs()] == [
        epoch["val"] for epoch in in_memory.epochs()
    ]
    hits, misses = map(sum, zip(*resumed.epochs()[-1]["lookups"].values(), strict=True))
    assert hits > 0
    assert misses > 0


def test_a_cache_for_rows_that_are_in_memory_is_declined(typed_runs):
    """The files of learnable rows are so small that the kernel keeps them in memory. Features of
    the other server are cached."""
    run = typed_runs.train_to_end("declined", *MAPPED, epochs=2, engine="zero_hop")
    assert "cache: declined for learnable rows: their files" in run.stdout
    lookups = run.epochs()[-1]["lookups"].items()
    assert {name for name, hits_and_misses in lookups if any(hits_and_misses)} == {"paper"}
    hosted = (RGCN, "--learnable.storage=host", *MAPPED[2:])
    in_memory = typed_runs.train_to_end("in memory too", *hosted, epochs=2, engine="zero_hop")
    assert "declined for learnable rows: the model is in host memory as they are" in (
        in_memory.stdout
    )
    assert run.losses() == in_memory.losses()


def test_a_run_begins_with_parameters_and_rows_of_another(typed_runs):
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


def test_an_unusable_run_to_begin_with_is_refused(reference, runs, tmp_path):
    file, finished = runs.config("not begun"), f"--train.init_from={reference.run_dir}"
    for words, match in (
        ([f"--train.init_from={tmp_path}"], "train.init_from: .*expected the folder of a finished"),
        ([finished, "--model.hidden=5"], "init_from: .*expected sh"),
    ):
        with pytest.raises(hopper.RequestError, match=match):
            prepare(hopper.load_config(file, words))
