"""Learnable rows on disk: training resumes from a checkpoint, and caches are declined."""

from __future__ import annotations

from typing import Any

RGCN = "--model.name=rgcn"
MAPPED = (RGCN, "--learnable.storage=mmap", "--cache.policy=benefit", "--cache.size=30%")
ON_DISK = (*MAPPED, "--cache.decline=false")


def test_a_resumed_run_has_the_losses_of_one_in_memory(typed_runs: Any) -> None:
    """It goes on from a checkpoint in the middle of its third epoch of five iterations."""
    options = {"engine": "zero_hop", "checkpoint_every": 12, "iterations_per_epoch": 5}
    run = typed_runs.train_to_end("halted", *ON_DISK, epochs=3, **options)
    run.halt_after(12)
    resumed = typed_runs.train_to_end("halted", *ON_DISK, epochs=4, resume=True, **options)
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
    in_memory = typed_runs.train_to_end("in memory too", RGCN, epochs=2, engine="zero_hop")
    assert run.losses() == in_memory.losses()
    hosted = ("--learnable.storage=host", *MAPPED[2:])
    run = typed_runs.train_to_end("in host memory", RGCN, *hosted, epochs=2, engine="zero_hop")
    assert "declined for learnable rows: the model is in host memory as they are" in run.stdout
    assert run.losses() == in_memory.losses()
